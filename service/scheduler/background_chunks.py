"""Limits how many background prompt tokens an iteration computes while other requests may have to wait for it."""

from __future__ import annotations

import math

from service.scheduler.request_pool import RequestPool

ON_GPU, ON_CPU = 32, 8
"""Prompt tokens per iteration. So few more rows hardly take longer, since every iteration reads all weights anyway."""

QUIET_S = 1.0
"""How long after the last non-background request has ended others are still expected: a new one has to wait for the
iteration that runs."""


class BackgroundChunks:
    """beside_others: the most background prompt tokens in an iteration while there are non-background requests."""

    def __init__(self, pool: RequestPool, beside_others: int) -> None:
        self._pool = pool
        self._beside_others = beside_others
        self._num_others_ended = 0
        self._last_other_s = -math.inf

    def most(self, now_s: float) -> int | None:
        """The present limit; None: no limit. To be called in every decision: it notices here when others end."""
        pool = self._pool
        if pool.has_others or pool.num_others_ended != self._num_others_ended:
            self._num_others_ended, self._last_other_s = pool.num_others_ended, now_s
        return self._beside_others if now_s - self._last_other_s < QUIET_S else None
