"""What the executor gives back for a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

INVALID_TOKEN_ID = -1
"""Stands for a draw that failed (logits not finite); it ends the one request that it belongs to."""


class FinishedTransfer(NamedTuple):
    """A transfer whose copies are done. seconds: how long they took on the way, None where nobody measured it."""

    transfer_id: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class IterationResult:
    """token_ids: the drawn ids, aligned with the plan's samples in order of `scheduled`, then of `samples`.

    finished_transfers: transfers, of this or earlier plans, that are known to have finished; each once.
    """

    token_ids: tuple[int, ...]
    finished_transfers: tuple[FinishedTransfer, ...] = ()
