"""Allowed next ids as bits, for kernels/apply_token_bitmask.py; computed in a thread beside the forward pass.

One or two rows are computed in the thread that waits for them, after it has launched the forward pass: handing them to
another thread and back would cost as much as computing one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

import numpy as np
from llguidance import LLExecutor, LLMatcher
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


_KEPT_BYTES = 64 * 2**20
_FEW_ROWS = 2


class TokenBitmask:
    """The engine's TokenMasker. Owns the bits: two sets of masks, used in turn.

    vocab_size: width of a row of logits. eos_token_ids: forbidden while a model thinks. kept_bytes: memory for masks
    that are kept under a key and need not be computed again.
    """

    def __init__(
        self, max_num_masks: int, vocab_size: int, eos_token_ids: frozenset[int], kept_bytes: int = _KEPT_BYTES
    ) -> None:
        self._num_words = -(-vocab_size // 32)
        self._bits = [np.zeros((max_num_masks, self._num_words), np.int32) for _ in range(2)]
        self._free_row = _all_but(eos_token_ids, self._num_words)
        self._kept = _KeptMasks(kept_bytes // (4 * self._num_words))
        self._thread = ThreadPoolExecutor(1, "bitmask")
        self._under_way: Future[memoryview] | None = None
        self._parallel: LLExecutor | None = None

    def begin(self, matchers: Sequence[Matcher], rows: Sequence[int]) -> BegunMasks:
        """See `TokenMasker`. The matchers must be of this package; those whose masks are the same share a row."""
        if self._under_way is not None:
            self._under_way.exception()  # waits. After a fault nobody has, and they must not come into later ones' bits
        different, stands_for = _different(cast(Sequence[StructuredMatcher], matchers))
        self._bits.reverse()
        bits = self._bits[0][: len(different)]
        shared = [-1 if row < 0 else stands_for[row] for row in rows]
        if len(different) <= _FEW_ROWS:
            return BegunMasks(shared, cache(partial(self._fill, different, bits)))
        self._under_way = self._thread.submit(self._fill, different, bits)
        return BegunMasks(shared, self._under_way.result)

    def _fill(self, matchers: Sequence[StructuredMatcher], bits: NDArray[np.int32]) -> memoryview:
        constrained, unknown = list[tuple[LLMatcher, int]](), list[tuple[Hashable, int]]()
        for index, matcher in enumerate(matchers):
            constraint, key = matcher.constraint, matcher.mask_key
            if constraint is None:
                bits[index] = self._free_row
            elif key is not None and (kept := self._kept.get(key)) is not None:
                bits[index] = kept
            else:
                constrained.append((constraint, index))
                unknown += [] if key is None else [(key, index)]
        if constrained:
            self._compute(constrained, bits)
        for key, index in unknown:
            self._kept.keep(key, bits[index])
        for index, matcher in enumerate(matchers):
            if matcher.also_allowed is not None:
                bits[index] |= _only(matcher.also_allowed, self._num_words)
        return bits.data

    def _compute(self, constrained: list[tuple[LLMatcher, int]], bits: NDArray[np.int32]) -> None:
        if len(constrained) <= _FEW_ROWS:
            for matcher, index in constrained:
                self._compute_alone(matcher, bits[index])
            return
        if self._parallel is None:
            self._parallel = LLExecutor()  # its threads start with the first grammar
        try:
            self._parallel.unsafe_compute_mask_ptr(constrained, bits.ctypes.data, self._num_words * 4, len(bits))
        except BaseException:  # a panic of the library is one
            _logger.exception("masks of %d grammars failed together", len(constrained))
            for matcher, index in constrained:
                self._compute_alone(matcher, bits[index])

    def _compute_alone(self, matcher: LLMatcher, row: NDArray[np.int32]) -> None:
        """A grammar at fault allows nothing, which fails its own request and no other."""
        try:
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, self._num_words * 4)
        except BaseException:
            _logger.exception("a mask failed")
            row[:] = 0


def _different(matchers: Sequence[StructuredMatcher]) -> tuple[list[StructuredMatcher], list[int]]:
    """Matchers of different masks, and for each of the given ones which of them has its mask."""
    different, stands_for = list[StructuredMatcher](), list[int]()
    index_of: dict[Hashable, int] = {}
    for matcher in matchers:
        key = None if matcher.constraint is None else matcher.mask_key or id(matcher)
        index = index_of.setdefault((key, matcher.also_allowed), len(different))
        if index == len(different):
            different.append(matcher)
        stands_for.append(index)
    return different, stands_for


class _KeptMasks:
    """Masks by key; the least recently used goes first."""

    def __init__(self, max_num_masks: int) -> None:
        self._max_num_masks = max_num_masks
        self._masks: OrderedDict[Hashable, NDArray[np.int32]] = OrderedDict()

    def get(self, key: Hashable) -> NDArray[np.int32] | None:
        mask = self._masks.get(key)
        if mask is not None:
            self._masks.move_to_end(key)
        return mask

    def keep(self, key: Hashable, mask: NDArray[np.int32]) -> None:
        """A mask that allows nothing comes from a fault of its matcher, and is not kept."""
        if self._max_num_masks and mask.any():
            if len(self._masks) == self._max_num_masks:
                self._masks.popitem(last=False)
            self._masks[key] = mask.copy()


def _only(token_id: int, num_words: int) -> NDArray[np.int32]:
    row = np.zeros(num_words, np.uint32)
    row[token_id // 32] = np.uint32(1 << token_id % 32)
    return row.view(np.int32)


def _all_but(token_ids: frozenset[int], num_words: int) -> NDArray[np.int32]:
    row = np.full(num_words, -1, np.int32)
    for token_id in token_ids:
        row &= ~_only(token_id, num_words)
    return row
