"""What the executor gives back for a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from service.core.embedding import Vector
from service.core.training import TrainingOutcome

INVALID_TOKEN_ID = -1
"""Stands for a draw that failed (logits not finite); it ends the one request that it belongs to."""


class FinishedTransfer(NamedTuple):
    """A transfer whose copies are done. seconds: how long they took, from the end of those that were started before
    them in the same plan; None where nobody measured it. is_first: of its plan, and nothing else kept it from beginning
    at once, so that waiting for its launch is part of these seconds."""

    transfer_id: int
    seconds: float | None
    is_first: bool = True


class TokenLogprobs(NamedTuple):
    """Log probabilities at one position, by the model alone: before penalties, masks and temperature.

    chosen: of the token that is there. top: (id, logprob) of the most probable tokens, the best first, as many as
    were asked for, or of the tokens that were asked for, in that order. rank: 1 for the most probable; known of prompt
    tokens only.
    """

    chosen: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class IterationResult:
    """token_ids: the drawn ids, aligned with the plan's samples in order of `scheduled`, then of `samples`.

    finished_transfers: transfers, of this or earlier plans, that are known to have finished; each once.
    logprobs: aligned with token_ids, None for draws that did not ask; empty if none did.
    prompt_logprobs: (sequence id, one entry a target) of the scheduled sequences that have targets.
    pooled: (sequence id, sum of hidden states) of the scheduled sequences that pool some.
    is_replayed: the model's step was one CUDA graph.
    compute_s: seconds that the device computed, by its own clock; None if it has none, or nothing was computed.
    training: what came of the plan's share.
    """

    token_ids: tuple[int, ...]
    finished_transfers: tuple[FinishedTransfer, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[tuple[int, tuple[TokenLogprobs, ...]], ...] = ()
    pooled: tuple[tuple[int, Vector], ...] = ()
    is_replayed: bool = False
    compute_s: float | None = None
    training: TrainingOutcome | None = None
