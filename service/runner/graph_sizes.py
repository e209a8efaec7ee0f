"""Which step sizes have a CUDA graph, and which of them a step is padded to. Plain numbers: no torch."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

MAX_DECODES = 1024
"""Decodes of the largest graph. A larger step computes for longer than the host needs to launch its kernels one by one,
even if the host has to wait for the GIL."""

MAX_TOKENS = 4096
"""The same for steps with prompts. The steps of a deep queue have graphs too, because launching kernel by kernel keeps
the GIL from the streams."""

DRAWING_TOKENS = 512
"""Tokens of the largest graph with prompts that draws ids itself; larger ones end before the logits. Such a graph has
room for a full batch of decodes, and padded ones would cost logits: 1,152 rows for 300 that draw would be 2 % of 4,096
tokens of Llama-8B. In a smaller step, launching these kernels one by one would cost more."""

FEW_DECODES = 32
DECODES_BESIDE_PROMPTS = (0, FEW_DECODES, 64, 256)
"""Numbers of decodes that each have a size of their own, beside a full batch, for graphs with prompts that draw. A
padded decode costs a row of logits and little more: for 40 decodes and a prompt, room for 256 takes 2 to 4 % longer
than room for 64 (Llama-8B on one H200: 8.6 instead of 8.25 ms with 256 tokens, 13.2 instead of 12.9 with 512)."""

NARROW_TOKENS = 512
"""The most padding that is accepted: computing so many tokens takes the device hardly longer than the host needs to
launch a step kernel by kernel."""

TILED = (64, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 1664, 1792, 2048)
"""Row counts worth padding to: the time of cuBLAS's products is nearly flat up to each.

Products of a Llama-8B step on one H200, ms (bf16, torch 2.11, CUDA 13), sizes that are not in the list in brackets: 64
4.1, 128 4.4, 192 5.2, 256 5.8, (288 6.9,) 320 6.8, (352 7.8,) 384 7.7, (416 9.3, 448 12.9, 480 9.7,) 512 9.6, (576
11.7,) 640 12.2, (704 14.2,) 768 14.4, (832 17.7,) 896 17.3, (960 17.9,) 1024 18.5, 1152 21.0, 1280 23.9, (1408 27.1,)
1536 27.9, 1664 33.4, 1792 37.5, (1920 39.3,) 2048 39.6.
"""

_EVERY_EIGHTH_UP_TO = 256

_FARTHEST = 1.25
"""A slow size is replaced by one at most this many times as large: a larger one would be too wide for its steps."""

_CLEARLY = 0.9
"""Two timings of the same size differ by less than this: clocks change, and others may use the device. With 0.98, a
start beside other processes dropped a dozen good sizes."""

MISSED_SHARE = 1 / 16
"""Of the recent steps. If fewer miss a size, its capture is not worth making all others wait."""


def most_prompts(num_tokens: int) -> int:
    """How many sequences of a step of `num_tokens` may compute several tokens. Each costs a row of logits, and a step
    with more of them runs kernel by kernel. Prompts of 16 tokens (a chatbot's first turns) fit."""
    return min(max(num_tokens // 16, 16), 128)


class GraphSize(NamedTuple):
    """Tokens that a graph has room for, and how many of them may be decodes. If all may be, it takes no prompts."""

    num_tokens: int
    num_decodes: int

    @property
    def is_mixed(self) -> bool:
        return self.num_decodes < self.num_tokens

    @property
    def draws(self) -> bool:
        """Whether the graph draws ids; else it ends with the hidden states that they are drawn from."""
        return not self.is_mixed or self.num_tokens <= DRAWING_TOKENS

    @property
    def most_prompts(self) -> int:
        """Sequences that may compute several tokens."""
        return most_prompts(self.num_tokens) if self.is_mixed else 0

    @property
    def most_draws(self) -> int:
        """Ids that may be drawn: one per sequence. A prompt's choices may use the room that other sequences leave."""
        return self.num_decodes + self.most_prompts

    def takes(self, num_tokens: int, num_decodes: int, num_prompts: int, num_draws: int = 0) -> bool:
        """Whether a step of `num_tokens` tokens fits: `num_decodes` sequences compute one each and `num_prompts`
        sequences the others. num_draws: given if there may be more than one per sequence."""
        return (
            num_tokens <= self.num_tokens
            and num_decodes <= self.num_decodes
            and num_prompts <= self.most_prompts
            and num_draws <= self.most_draws
        )


class PaddedStep(NamedTuple):
    """A computed step by its tokens, decodes and prompts, and the size of its graph; None if it had none."""

    num_tokens: int
    num_decodes: int
    num_prompts: int
    size: GraphSize | None


def narrowest(
    sizes: Sequence[GraphSize], num_tokens: int, num_decodes: int, num_prompts: int, num_draws: int = 0
) -> GraphSize | None:
    """The first of the ascending sizes that takes such a step; None if there is none, or if it would add more than
    NARROW_TOKENS of padding."""
    widest = num_tokens + NARROW_TOKENS
    for index in range(bisect_left(sizes, (num_tokens, num_decodes)), len(sizes)):
        size = sizes[index]
        if size.takes(num_tokens, num_decodes, num_prompts, num_draws):
            return size if not size.is_mixed or size.num_tokens <= widest else None
    return None


def outrun(timed: Mapping[GraphSize, float]) -> set[GraphSize]:
    """The sizes that take longer than a nearby larger one with room for all that they hold. timed: seconds by size.

    For some numbers of rows cuBLAS chooses a slow kernel (448 rows of Llama-8B's gate and up projections take 1.7 times
    as long as 512 on one H200).
    """
    return {
        size
        for size, seconds in timed.items()
        for other, its_seconds in timed.items()
        if size.num_tokens < other.num_tokens <= max(NARROW_TOKENS, _FARTHEST * size.num_tokens)
        and size.num_decodes <= other.num_decodes
        and its_seconds < _CLEARLY * seconds
    }


def most_missed(sizes: Iterable[GraphSize], steps: Collection[PaddedStep]) -> GraphSize | None:
    """Of these sizes, not captured yet, the one that would have been a narrower fit for the most steps; None unless it
    is MISSED_SHARE of them."""
    decodes, mixed = list[GraphSize](), list[GraphSize]()
    for size in sorted(sizes):
        (mixed if size.is_mixed else decodes).append(size)
    missed = Counter[GraphSize]()
    for (num_tokens, num_decodes, num_prompts, padded), count in Counter(steps).items():
        narrower = narrowest(mixed if num_prompts else decodes, num_tokens, num_decodes, num_prompts)
        if narrower is not None and (padded is None or narrower < padded):
            missed[narrower] += count
    often = [size for size, count in missed.most_common(1) if count >= MISSED_SHARE * len(steps)]
    return often[0] if often else None


def graph_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[GraphSize]:
    """All sizes, in the order of capture.

    First the common ones, larger ones first. Then those of many decodes, without which a burst's end is padded the
    most: 300 decodes of Llama-8B take 15.9 ms padded to 512, and 12.5 ms padded to 320 (one H200). Then the others,
    smallest first: a request that arrives meanwhile waits for one capture.
    """
    common = common_sizes(max_num_seqs, max_num_batched_tokens)
    rest = {*_decode_sizes(max_num_seqs), *_mixed_sizes(max_num_seqs, max_num_batched_tokens)} - common
    many = {size for size in rest if not size.is_mixed and size.num_tokens > _EVERY_EIGHTH_UP_TO}
    return [*sorted(common, reverse=True), *sorted(many), *sorted(rest - many)]


def common_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> set[GraphSize]:
    """The sizes captured before the first request, because a burst right after the start leaves no time for captures.
    Any step fits one of them, and every number of tokens has one with room for a full batch of decodes."""
    decodes = sorted(_decode_sizes(max_num_seqs))
    mixed = sorted(_mixed_sizes(max_num_seqs, max_num_batched_tokens))
    most_decodes = dict(mixed)  # the last one wins: per number of tokens, the most decodes
    return {
        decodes[-1],
        *(size for size in decodes if _is_power_of_two(size.num_tokens)),
        *(size for size in mixed if size.num_decodes == most_decodes[size.num_tokens]),
        *(size for size in mixed if size.num_decodes == FEW_DECODES and _is_power_of_two(size.num_tokens)),
    }


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _decode_sizes(max_num_seqs: int) -> list[GraphSize]:
    """Every eighth number of decodes up to 256, a few small ones before, and those of TILED above."""
    largest = min(max_num_seqs, MAX_DECODES)
    eighths = range(8, _EVERY_EIGHTH_UP_TO + 1, 8)
    counts = {1, 2, 4, *eighths, *(count for count in TILED if count > _EVERY_EIGHTH_UP_TO), largest}
    return [GraphSize(count, count) for count in counts if count <= largest]


def _mixed_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> list[GraphSize]:
    largest = min(max_num_batched_tokens, MAX_TOKENS)
    counts = {32, *TILED, largest}
    most_decodes = min(max_num_seqs, MAX_DECODES)
    beside = {count for count in DECODES_BESIDE_PROMPTS if count < most_decodes} | {most_decodes}
    # A prompt beside decodes has at least two tokens: with one it is computed like a decode.
    return [
        GraphSize(n, d)
        for n in counts
        if n <= largest
        for d in {min(d, n - 2) for d in (beside if n <= DRAWING_TOKENS else {most_decodes})}
        if d >= 0
    ]


def rows_of_logits(num_draws: int, most: int) -> int:
    """How many rows of logits to compute for `num_draws` draws, at most `most`: rounded up to a size that cuBLAS is
    fast at."""
    index = bisect_left(TILED, num_draws)
    return min(TILED[index], most) if index < len(TILED) else most
