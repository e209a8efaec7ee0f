"""Logits to ids: temperature, top-k, min-p, top-p, draw (kernels/sample_tokens.py). What else a draw may ask for:
sampling_extras.py. Parameters that no draw of the batch uses cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from kernels.greedy_tokens import greedy_tokens
from kernels.sample_tokens import sample_tokens
from service.sampling.vocab_shard import VocabShard


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The parameters of N draws.

    columns: by name, each [N]. temperature, top_p fp32, top_k int32: as in SamplingParams (0, 1 and 0 switch them off).
    seeds, sample_positions int64: key the draw; the position is the new token's index in its sequence. For
    SamplingExtras also: min_p, repetition_penalty, presence_penalty, frequency_penalty fp32.
    is_greedy: all temperatures are 0. Known on the host, so the other columns need not be read.
    is_unfiltered: no draw has top-k or top-p. Also known on the host; False if the host does not know.
    """

    columns: Mapping[str, Tensor]
    is_greedy: bool
    is_unfiltered: bool = False

    def __len__(self) -> int:
        return len(self.columns["seeds"])

    def part(self, first: int, stop: int) -> SamplingBatch:
        """The draws first, ..., stop - 1. If first is 0, the result shares memory with this batch."""
        return replace(self, columns={name: part_of(c, first, stop) for name, c in self.columns.items()})


def part_of(of_draws: Tensor, first: int, stop: int) -> Tensor:
    """Elements first, ..., stop - 1, copied unless first is 0: Triton compiles differently for unaligned addresses."""
    return of_draws[first:stop].clone() if first else of_draws[:stop]


def sample(logits: Tensor, batch: SamplingBatch, *, has_min_p: bool = False, shard: VocabShard | None = None) -> Tensor:
    """logits [N, vocab_size] -> ids [N] int64; -1 where a row's logits are not finite.

    A draw depends on its row, parameters, seed and position, never on its neighbours. shard: the ids that `logits` are
    of, under tensor parallelism; None: all ids. Other ranks' logits are gathered only if a filter needs them.
    """
    if shard is not None:
        if batch.is_greedy or (batch.is_unfiltered and not has_min_p):
            return shard.sample(logits, batch.columns, is_greedy=batch.is_greedy)
        logits = shard.whole(logits)
    return draws_of(batch, has_min_p=has_min_p)(logits)


def draws_of(batch: SamplingBatch, *, has_min_p: bool = False) -> Callable[[Tensor], Tensor]:
    """`sample` of whole logits, for a batch whose draws are made again and again: its parameters are read where they
    are now, and is_greedy holds for good."""
    if batch.is_greedy:
        return greedy_tokens
    columns = batch.columns
    return partial(
        sample_tokens,
        temperature=columns["temperature"],
        top_k=columns["top_k"],
        top_p=columns["top_p"],
        seeds=columns["seeds"],
        positions=columns["sample_positions"],
        min_p=columns["min_p"] if has_min_p else None,
    )
