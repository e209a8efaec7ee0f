"""The ids that the last stage has drawn, on their way to the first one, which embeds them.

They go from host to host, as all control does: the engine waits for them anyway before it decides the next iteration of
those requests, and the message is there before that plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from service.core.iteration import Int64Array, IterationPlan
from service.distributed.integers import IntegerReader, IntegerWriter

NoteDrawn = Callable[[Int64Array, Int64Array], None]
"""(rows, token_ids): a row that is there several times keeps any of its ids."""


def write_drawn(number: int, token_ids: Sequence[int]) -> bytes:
    """Of plan `number`, the first is 1; none if it has failed."""
    to = IntegerWriter()
    to.one(number)
    to.many(token_ids)
    return to.message()


class _Drawing(NamedTuple):
    number: int
    rows: Int64Array


class HeardDraws:
    """The first stage's side: which rows draw is known by the plans, in whose order the ids come."""

    def __init__(self, note: NoteDrawn) -> None:
        self._note = note
        self._drawing: deque[_Drawing] = deque()

    def expect(self, number: int, plan: IterationPlan) -> None:
        """Every plan that draws, in order."""
        rows = [item.row for item in plan.scheduled for _ in item.samples]
        self._drawing.append(_Drawing(number, np.concatenate((plan.decodes.rows, np.array(rows, np.int64)))))

    def hear(self, message: bytes) -> None:
        """Raises ValueError where a message was lost, or came twice: what is computed from then on would be wrong."""
        source = IntegerReader(message)
        number, token_ids = source.one(), source.column()
        if not self._drawing or self._drawing[0].number != number:
            raise ValueError(f"ids of plan {number} came, which nobody waits for")
        rows = self._drawing.popleft().rows
        if not len(token_ids):
            return
        if len(token_ids) != len(rows):
            raise ValueError(f"plan {number} draws {len(rows)} ids, and {len(token_ids)} came")
        self._note(rows, token_ids)
