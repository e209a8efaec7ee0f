"""Drafts for the toy model, right as often as a test wants: the model's own tokens never repeat."""

from __future__ import annotations

import random
from collections.abc import Callable

from service.core.sequence import Sequence
from tests.engine.toy_model import cells_of, next_token, seen


class ToyDrafts:
    """A Drafter. share_right: share of right tokens; the others are random. Now and then there is no draft, or a short
    one. weights_of: sequence id -> digest of its adapter."""

    def __init__(
        self,
        chance: random.Random,
        share_right: float,
        vocabulary: int,
        weights_of: Callable[[int], str | None] = lambda _: None,
        window: int | None = None,
    ) -> None:
        self._window = window
        self._chance = chance
        self._share_right = share_right
        self._vocabulary = vocabulary
        self._weights_of = weights_of

    def draft(self, sequence: Sequence, num_known: int, num: int) -> tuple[int, ...]:
        chance, tokens = self._chance, sequence.token_ids[:num_known]
        assert min(tokens) >= 0, "what is known is known"
        for _ in range(chance.choice([0, 1, num, num, num])):
            cells = cells_of(tokens, self._weights_of(sequence.sequence_id), self._window)
            right = next_token(seen(cells, self._window), sequence.draw.seed, self._vocabulary)
            tokens.append(right if chance.random() < self._share_right else chance.randrange(self._vocabulary))
        return tuple(tokens[num_known : num_known + num])
