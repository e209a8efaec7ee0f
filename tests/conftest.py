"""Small models and many tests at once: one thread each is fastest, and does not depend on the machine's load."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
