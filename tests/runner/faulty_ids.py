from __future__ import annotations

import torch

from service.runner.step import PendingTokenIds


class FaultyIds(PendingTokenIds):
    """The device has failed."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(1, dtype=torch.int64), 1)

    def is_done(self) -> bool:
        raise RuntimeError("illegal memory access")

    def wait(self) -> tuple[int, ...]:
        raise RuntimeError("illegal memory access")
