"""A grammar for the toy model: a fixed number of tokens, each of which decides what the next one may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import InvalidRequest
from tests.structured.masks import FixedMasks

NUM_KINDS = 7
"""A token's kind is its id modulo NUM_KINDS. After kind k may come one of the next few kinds from 3k on."""

CURSE = 11


@dataclass(frozen=True)
class ToyGrammar:
    """num_tokens: length of the whole output. num_allowed: number of kinds that the next token may have. is_cursed: it
    allows multiples of CURSE, but fails at them."""

    num_tokens: int
    num_allowed: int = 2
    is_cursed: bool = False

    def start(self) -> ToyMatcher:
        return ToyMatcher(self)


class ToyMatcher:
    allows_anything = False

    def __init__(self, grammar: ToyGrammar, num_accepted: int = 0, kind: int = 0) -> None:
        self._grammar = grammar
        self.place = (num_accepted, kind)

    def accept(self, token_id: int) -> bool:
        if self.is_finished or not self.allows(token_id) or (self._grammar.is_cursed and token_id % CURSE == 0):
            return False
        self.place = (self.place[0] + 1, token_id % NUM_KINDS)
        return True

    @property
    def refusal(self) -> InvalidRequest | None:
        return InvalidRequest("cursed") if self._grammar.is_cursed else None

    @property
    def is_finished(self) -> bool:
        return self.place[0] == self._grammar.num_tokens

    def fork(self) -> ToyMatcher:
        return ToyMatcher(self._grammar, *self.place)

    def allows(self, token_id: int) -> bool:
        first = sum(self.place) + 2 * self.place[1]
        return (token_id - first) % NUM_KINDS < self._grammar.num_allowed

    def nearest(self, token_id: int, vocabulary: int) -> int:
        """The first allowed id from this one on, wrapping around at the end of the vocabulary."""
        return next(i % vocabulary for i in range(token_id, token_id + vocabulary) if self.allows(i % vocabulary))


class ToyMasks(FixedMasks):
    """Fails if a matcher advances before the masks have been waited for."""

    def __init__(self, matchers: Sequence[ToyMatcher], rows: Sequence[int], vocabulary: int) -> None:
        super().__init__(rows, [[i for i in range(vocabulary) if m.allows(i)] for m in matchers], vocabulary)
        self._matchers = matchers
        self._places = [matcher.place for matcher in matchers]

    def wait(self) -> memoryview:
        assert self._places == [matcher.place for matcher in self._matchers]
        return super().wait()


class ToyMasker:
    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def begin(self, matchers: Sequence[ToyMatcher], rows: Sequence[int]) -> ToyMasks:
        return ToyMasks(matchers, rows, self._vocabulary)
