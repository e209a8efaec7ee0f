"""Forecasts of memory use, and the two admission policies that look ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager, Fit
from service.scheduler.history import History
from service.scheduler.memory_need import num_blocks_at_most, num_blocks_to_start, num_shared_tokens


class ReserveAdmission:
    """ORCA's Algorithm 1 (section 4.2): a request starts only if all blocks that it may ever need can be reserved, in
    addition to those reserved for running requests and their adapters.

    Nothing is ever preempted, but memory is reserved for tokens that may never come: the plain twin of the policies
    that overcommit. An ended request may hold blocks until the iterations in flight with it are over.
    """

    def fit(
        self,
        group: SequenceGroup,
        prefix: list[int],
        blocks: BlockManager,
        running: Sequence[SequenceGroup],
        num_promised: int = 0,
    ) -> Fit:
        slots = blocks.adapter_slots
        of_adapters = slots.num_pinned_blocks + slots.num_blocks_to_pin(group.request.adapter)
        reserved = sum(num_blocks_at_most(other.request, blocks) for other in running)
        needed = of_adapters + reserved + num_blocks_at_most(group.request, blocks)
        if needed > blocks.pool.num_blocks:
            return Fit.LATER
        return blocks.fit(num_blocks_to_start(group, prefix, blocks), num_promised)


class ForecastAdmission:
    """A request starts if the forecast peak including it fits the cache (as LightLLM's router does, whose request
    manager FineInfer adopts in section 3.4.2).

    Each choice is expected to reach the 90th percentile of recent output lengths, or max_tokens before enough choices
    have ended, and to leave half of its last block unfilled. Without that half block, preemptions occur even if all
    lengths are known (loadtest/scenarios/tokenattention.py). A wrong forecast costs a preemption, never correctness.
    """

    def __init__(self, history: History) -> None:
        self._history = history

    def fit(
        self,
        group: SequenceGroup,
        prefix: list[int],
        blocks: BlockManager,
        running: Sequence[SequenceGroup],
        num_promised: int = 0,
    ) -> Fit:
        block_size = blocks.block_size
        lengths = [pair for other in (*running, group) for pair in self._lengths(other, block_size)]
        peak = 0  # in tokens; a token counts once per layer group
        if blocks.groups.num_full:
            peak += blocks.groups.num_full * peak_num_tokens(lengths)
        if blocks.groups.num_windowed:
            peak += blocks.groups.num_windowed * peak_num_tokens(lengths, blocks.most_tokens_seen)
        slots = blocks.adapter_slots
        of_adapters = slots.num_pinned_blocks + slots.num_blocks_to_pin(group.request.adapter)
        if running and peak > (blocks.pool.num_blocks - of_adapters) * block_size:
            return Fit.LATER
        return blocks.fit(num_blocks_to_start(group, prefix, blocks), num_promised)

    def _lengths(self, group: SequenceGroup, block_size: int) -> list[tuple[int, int]]:
        """(tokens now, tokens to come) per live choice. The shared prompt counts for the choice that ends last."""
        likely, max_tokens = self._history.likely_output_length(), group.request.sampling.max_tokens
        expected = max_tokens if likely is None else min(likely, max_tokens)
        unfilled = (block_size - 1) // 2
        lengths = [(s.num_tokens + unfilled, max(1, expected - s.num_output_tokens)) for s in group.live]
        if len(lengths) == 1:
            return lengths
        lengths.sort(key=itemgetter(1), reverse=True)
        shared = num_shared_tokens(group.request, block_size)
        return lengths[:1] + [(num_now - shared, num_to_come) for num_now, num_to_come in lengths[1:]]


def peak_num_tokens(sequences: Iterable[tuple[int, int]], most_each: int | None = None) -> int:
    """The peak number of tokens held by sequences of (tokens now, tokens to come), growing by one token per iteration.
    most_each: what one sequence holds at most, with a sliding window; the result is then an upper bound.

    Memory peaks just before some sequence ends. Sort by tokens to come, descending: when the i-th sequence ends, those
    before it still live, and each of the i has grown by the i-th's tokens to come.
    """
    held, peak = 0, 0
    for index, (num_now, num_to_come) in enumerate(sorted(sequences, key=lambda pair: -pair[1]), 1):
        held += num_now if most_each is None else min(num_now, most_each)
        grown = held + index * num_to_come
        peak = max(peak, grown if most_each is None else min(grown, index * most_each))
    return peak
