"""How long torch's threads wait for each other by spinning. Imports no torch: it is to be called before torch is."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_SPINS = 10_000  # about a tenth of a millisecond: the gap between two operations, not the gap between two iterations


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have threads without work sleep after a short while, unless the environment says how they are to wait.

    libgomp reads this when it is loaded. By its default a thread spins for milliseconds, and while it does the event
    loop, a client or another process on the same cores waits; then the operation that the spinning waits for waits
    too. Measured on 2 cores, 135M model over HTTP, output tokens/s by default / limited: one stream on an otherwise
    idle machine 58 / 51, sixteen 337 / 355; beside two busy processes one stream 2 to 20 / 40 to 47, sixteen
    13 / 300.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(_SPINS))
