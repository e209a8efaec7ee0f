"""The model that comes with Headrace, and its adapters."""

from __future__ import annotations

from pathlib import Path

QUICKSTART_MODEL = Path(__file__).parents[1] / "quickstart" / "model"
QUICKSTART_NAME = "headrace-quickstart"
QUICKSTART_ADAPTERS = Path(__file__).parents[1] / "quickstart" / "adapters"
