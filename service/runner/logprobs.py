"""Log probabilities on their way from the device to the engine, of drawn tokens and of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import cast

import numpy as np
import torch
from torch import Tensor

import kernels.token_logprobs as kernel
from service.core.scheduled_sequence import ScheduledSequence
from service.core.token_logprobs import TokenLogprobs
from service.runner.device_copies import AsyncCopy, to_device
from service.runner.selective_batching import FlatBatch
from service.sampling.logprobs import num_top_for, score


class DrawLogprobs:
    """The logprobs of N draws. asked: how many of the most probable tokens each draw wants; None: no logprobs.

    asked_tokens: draw -> the tokens it wants instead, in order of the draws. asked_logprobs: one row for each of these.
    """

    def __init__(
        self,
        logprobs: kernel.TokenLogprobs,
        asked: Sequence[int | None],
        asked_tokens: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
        asked_logprobs: Tensor | None = None,
    ) -> None:
        self._copy = AsyncCopy(*logprobs)
        self._asked = asked
        self._asked_tokens = asked_tokens
        self._copy_of_asked = None if asked_logprobs is None else AsyncCopy(asked_logprobs)

    def wait(self) -> tuple[TokenLogprobs | None, ...]:
        """As in IterationResult."""
        entries = list(_plain(self._copy.wait(), self._asked))
        if self._copy_of_asked is not None:
            (rows,) = (tensor.tolist() for tensor in self._copy_of_asked.wait())
            for (draw, ids), values in zip(self._asked_tokens.items(), rows, strict=True):
                entry = entries[draw]
                assert entry is not None
                entries[draw] = entry._replace(top=tuple(zip(ids, values, strict=False)))  # values: padded
        return tuple(entries)


class PromptLogprobs:
    """Logprobs and ranks of the prompt tokens that are the targets of `items`, item by item."""

    def __init__(self, items: Sequence[ScheduledSequence], logprobs: kernel.TokenLogprobs, ranks: Tensor) -> None:
        self._items = items
        self._copy = AsyncCopy(*logprobs, ranks)

    def wait(self) -> tuple[tuple[int, tuple[TokenLogprobs, ...]], ...]:
        """As in IterationResult."""
        asked = [item.sampling.num_prompt_logprobs for item in self._items for _ in item.targets]
        entries = iter(_plain(self._copy.wait(), asked))
        return tuple(
            (item.sequence_id, tuple(cast(TokenLogprobs, next(entries)) for _ in item.targets)) for item in self._items
        )


def score_prompts(
    scheduled: Sequence[ScheduledSequence],
    batch: FlatBatch,
    hidden: Tensor,
    compute_logits: Callable[[Tensor], Tensor],
    vocab_size: int,
    device: torch.device,
    *,
    one_by_one: bool = False,
) -> PromptLogprobs | None:
    """hidden [T, hidden_size]: of all tokens of a batch that ends with `scheduled`. None if there are no targets.
    one_by_one: as in `draw_all`."""
    token_starts = batch.token_starts[batch.num_seqs - len(scheduled) :].tolist()
    starts = [start for item, start in zip(scheduled, token_starts, strict=True) if item.targets]
    items = [item for item in scheduled if item.targets]
    if not items:
        return None
    places = [np.arange(start, start + len(item.targets)) for item, start in zip(items, starts, strict=True)]
    targets = np.fromiter(chain.from_iterable(item.targets for item in items), np.int64)
    there = to_device({"places": np.concatenate(places), "targets": targets}, device)
    num_top = num_top_for(max(item.sampling.num_prompt_logprobs or 0 for item in items), vocab_size)
    scores = score(hidden.index_select(0, there["places"]), there["targets"], compute_logits, num_top, one_by_one)
    return PromptLogprobs(items, scores.logprobs, scores.ranks)


def _plain(tensors: Sequence[Tensor], asked: Sequence[int | None]) -> tuple[TokenLogprobs | None, ...]:
    """tensors: chosen, top ids, top logprobs and perhaps ranks. Entry i has its first asked[i] top tokens; None where
    asked[i] is."""
    chosen, top_ids, top, *ranks = (tensor.tolist() for tensor in tensors)
    rank_of = ranks[0] if ranks else [None] * len(asked)
    return tuple(
        None
        if num is None
        else TokenLogprobs(chosen[i], tuple(zip(top_ids[i][:num], top[i][:num], strict=True)), rank_of[i])
        for i, num in enumerate(asked)
    )
