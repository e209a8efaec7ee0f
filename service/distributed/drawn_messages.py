"""How the ids that the last stage samples reach the first stage, which embeds them.

They go through host memory like all control messages. The engine needs them anyway before it schedules the next
iteration of those requests, so the message arrives before that plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from service.core.iteration import Int64Array, IterationPlan
from service.distributed.integers import IntegerReader, IntegerWriter

NoteDrawn = Callable[[Int64Array, Int64Array], None]
"""(rows, token_ids): note the ids sampled for these rows. If a row occurs several times, any of its ids may be kept."""


def write_drawn(number: int, token_ids: Sequence[int]) -> bytes:
    """The message with the ids of plan `number`, counted from 1; no ids if the plan failed."""
    to = IntegerWriter()
    to.one(number)
    to.many(token_ids)
    return to.message()


class _Drawing(NamedTuple):
    number: int
    rows: Int64Array


class HeardDraws:
    """The first stage's side. The plans tell which rows sample, and the ids come in the plans' order."""

    def __init__(self, note: NoteDrawn) -> None:
        self._note = note
        self._drawing: deque[_Drawing] = deque()

    def expect(self, number: int, plan: IterationPlan) -> None:
        """To be called for every plan that samples, in order."""
        rows = [item.row for item in plan.scheduled for _ in item.samples]
        self._drawing.append(_Drawing(number, np.concatenate((plan.decodes.rows, np.array(rows, np.int64)))))

    def hear(self, message: bytes) -> None:
        """Raises ValueError if a message is missing or repeated, since all later results would be wrong."""
        source = IntegerReader(message)
        number, token_ids = source.one(), source.column()
        if not self._drawing or self._drawing[0].number != number:
            raise ValueError(f"ids of plan {number} arrived, but no plan waits for them")
        rows = self._drawing.popleft().rows
        if not len(token_ids):
            return
        if len(token_ids) != len(rows):
            raise ValueError(f"plan {number} draws {len(rows)} ids, but {len(token_ids)} arrived")
        self._note(rows, token_ids)
