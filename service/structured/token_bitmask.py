"""Masks of allowed next ids as bits, for kernels/apply_token_bitmask.py; computed in a thread beside the forward pass.

One or two masks are computed by the thread that waits for them, after it has launched the forward pass: passing them to
another thread and back would cost as much as computing one.

No mask is cached here. An llguidance matcher keeps its last mask and returns it while the states of its lexer and
parser are the same, as within a string, a name, or text before a tool call. A grammar's matchers share one lexer, which
serves one of them at a time: masks of different grammars are computed in parallel, those of one grammar in sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from service.core.grammar import Matcher
from service.structured.grammar_matcher import StructuredMatcher

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BegunMasks:
    """See `TokenMasks` in core/grammar.py."""

    rows: Sequence[int]
    bits: Callable[[], memoryview]

    def wait(self) -> memoryview:
        return self.bits()


_FEW_ROWS = 2


class TokenBitmask:
    """The engine's TokenMasker. Owns the bit arrays: several sets, used in turn.

    vocab_size: width of a row of logits. eos_token_ids: forbidden while a model thinks. num_sets: at least as many as
    iterations can be in flight.
    """

    def __init__(self, max_num_masks: int, vocab_size: int, eos_token_ids: frozenset[int], num_sets: int = 2) -> None:
        self._num_words = -(-vocab_size // 32)
        self._bits = [np.zeros((max_num_masks, self._num_words), np.int32) for _ in range(num_sets)]
        self._free_row = _all_but(eos_token_ids, self._num_words)
        self._thread = ThreadPoolExecutor(1, "bitmask")
        self._under_way: Future[memoryview] | None = None
        self._parallel: LLExecutor | None = None

    def begin(self, matchers: Sequence[Matcher], rows: Sequence[int]) -> BegunMasks:
        """See `TokenMasker`. The matchers must be StructuredMatchers. Those that think share a row."""
        if self._under_way is not None:
            self._under_way.exception()  # waits: after a failed iteration it may still be writing its bits
        different, stands_for = _different(cast(Sequence[StructuredMatcher], matchers))
        self._bits.append(self._bits.pop(0))
        bits = self._bits[0][: len(different)]
        shared = [-1 if row < 0 else stands_for[row] for row in rows]
        if len(different) <= _FEW_ROWS:
            return BegunMasks(shared, cache(partial(self._fill, different, bits)))
        self._under_way = self._thread.submit(self._fill, different, bits)
        return BegunMasks(shared, self._under_way.result)

    def _fill(self, matchers: Sequence[StructuredMatcher], bits: NDArray[np.int32]) -> memoryview:
        constrained = list[tuple[LLMatcher, int]]()
        for index, matcher in enumerate(matchers):
            constraint = matcher.constraint
            if constraint is None:
                bits[index] = self._free_row
            elif isinstance(constraint, int):
                bits[index] = _only(constraint, self._num_words)
            else:
                constrained.append((constraint, index))
        if constrained:
            self._compute(constrained, bits)
        for index, matcher in enumerate(matchers):
            if matcher.also_allowed is not None:
                bits[index] |= _only(matcher.also_allowed, self._num_words)
        return bits.data

    def _compute(self, constrained: list[tuple[LLMatcher, int]], bits: NDArray[np.int32]) -> None:
        if len(constrained) <= _FEW_ROWS:
            for matcher, index in constrained:
                self._compute_alone(matcher, bits, index)
            return
        if self._parallel is None:
            self._parallel = LLExecutor()  # created here, since it starts threads
        try:
            fill_next_token_bitmask_par(self._parallel, constrained, bits)
        except BaseException:  # a panic of the Rust library is no Exception
            _logger.exception("computing %d token masks at once failed; retrying one by one", len(constrained))
            for matcher, index in constrained:
                self._compute_alone(matcher, bits, index)

    def _compute_alone(self, matcher: LLMatcher, bits: NDArray[np.int32], index: int) -> None:
        """A faulty grammar gets a mask that allows nothing, which fails its own request and no other."""
        try:
            fill_next_token_bitmask(matcher, bits, index)
        except BaseException:
            _logger.exception("computing a token mask failed")
            bits[index] = 0


def _different(matchers: Sequence[StructuredMatcher]) -> tuple[list[StructuredMatcher], list[int]]:
    """The matchers without duplicate constraints, and for each given matcher the index of the one that has its mask."""
    keys = [id(matcher) if isinstance(matcher.constraint, LLMatcher) else (matcher.constraint,) for matcher in matchers]
    different = dict(zip(keys, matchers, strict=True))
    index_of = {key: index for index, key in enumerate(different)}
    return [*different.values()], [index_of[key] for key in keys]


def _only(token_id: int, num_words: int) -> NDArray[np.int32]:
    row = np.zeros(num_words, np.uint32)
    row[token_id // 32] = np.uint32(1 << token_id % 32)
    return row.view(np.int32)


def _all_but(token_ids: frozenset[int], num_words: int) -> NDArray[np.int32]:
    row = np.full(num_words, -1, np.int32)
    for token_id in token_ids:
        row &= ~_only(token_id, num_words)
    return row
