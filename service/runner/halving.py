"""An iteration whose activations do not fit the device's memory is computed in halves, one after the other.

Nothing of it depends on the cut: a token attends to what is in the cache, and the tokens before it are there by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from service.core.iteration_plan import ScheduledSequence
from service.runner.selective_batching import FlatBatch
from service.runner.sequence_rows import Int64Array


class Part(NamedTuple):
    """Some neighbouring tokens of one sequence. place: of the first of them in the whole iteration's flat batch."""

    share: ScheduledSequence
    place: int


ComputePart = Callable[[Sequence[Part]], tuple[Tensor, Tensor]]
"""Parts -> the places [t] of their tokens in the whole iteration's flat batch, and what each computed, [t, width]."""


def compute_in_halves(scheduled: Sequence[ScheduledSequence], batch: FlatBatch, compute: ComputePart) -> Tensor:
    """[T, width] of all the iteration's tokens, from halves that are halved again wherever memory still runs out.

    Raises OutOfMemoryError if there is none for a single token.
    """
    whole: Tensor | None = None
    waiting = deque(halves(whole_parts(scheduled, batch)))
    while waiting:
        torch.cuda.empty_cache()
        parts = waiting.popleft()
        try:
            there, computed = compute(parts)
            if whole is None:
                whole = computed.new_empty(len(batch.token_ids), computed.shape[1])
        except torch.OutOfMemoryError:
            if num_tokens(parts) == 1:
                raise
            waiting.extendleft(reversed(halves(parts)))
            continue
        whole.index_copy_(0, there, computed)
    assert whole is not None
    return whole


def whole_parts(scheduled: Sequence[ScheduledSequence], batch: FlatBatch) -> list[Part]:
    """One part for each scheduled sequence of the iteration. batch: its flat batch."""
    return [Part(share, start) for share, start in zip(scheduled, batch.token_starts.tolist(), strict=True)]


def num_tokens(parts: Sequence[Part]) -> int:
    return sum(len(part.share.token_ids) for part in parts)


def halves(parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
    """About as many tokens in each, at least two in all. A sequence may be cut; its first tokens are in the first."""
    first, second = list[Part](), list[Part]()
    left = num_tokens(parts) // 2
    for share, place in parts:
        cut = min(left, len(share.token_ids))
        left -= cut
        if cut:
            first.append(Part(share._replace(token_ids=share.token_ids[:cut]), place))
        if cut < len(share.token_ids):
            start = share.num_computed_tokens + cut
            rest = share._replace(token_ids=share.token_ids[cut:], num_computed_tokens=start)
            second.append(Part(rest, place + cut))
    return first, second


def places(parts: Sequence[Part], batch: FlatBatch) -> Int64Array:
    """[T] For each token of the parts' own flat batch, its place in the whole iteration's."""
    result = np.empty(len(batch.token_ids), dtype=np.int64)
    for (share, place), start in zip(parts, batch.token_starts.tolist(), strict=True):
        count = len(share.token_ids)
        result[start : start + count] = np.arange(place, place + count)
    return result
