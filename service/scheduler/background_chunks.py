"""Prompts in the background take little of an iteration that others wait for."""

from __future__ import annotations

import math

from service.scheduler.request_pool import RequestPool

ON_GPU, ON_CPU = 32, 8
"""Prompt tokens of an iteration. For so few rows more it takes hardly longer: it reads all weights anyway."""

QUIET_S = 1.0
"""So long after the last of the others has ended they are thought to come again: whoever comes waits for the iteration
that runs."""


class BackgroundChunks:
    """beside_others: prompt tokens in the background that an iteration computes at most while there are others."""

    def __init__(self, pool: RequestPool, beside_others: int) -> None:
        self._pool = pool
        self._beside_others = beside_others
        self._num_others_ended = 0
        self._last_other_s = -math.inf

    def most(self, now_s: float) -> int | None:
        """How many tokens it may be now; None: any number. Whoever is to be told in time of the others' end asks again
        and again."""
        pool = self._pool
        if pool.has_others or pool.num_others_ended != self._num_others_ended:
            self._num_others_ended, self._last_other_s = pool.num_others_ended, now_s
        return self._beside_others if now_s - self._last_other_s < QUIET_S else None
