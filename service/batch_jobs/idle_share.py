"""How many lines of batches may run: what other requests leave free."""

from __future__ import annotations

import math
from typing import NamedTuple

QUIET_S = 1.0
"""For so long after the last other request has ended, more of them are expected."""
_DOUBLING_S = 0.05
"""Without other requests the share doubles this often: an early arrival then meets few prompts of batches."""
_SPARE_SHARE = 32
"""One sequence in so many is kept free for the first request after a quiet time."""
_BESIDE_SHARE = 64
"""While there are other requests, batches get one sequence in so many."""
_MOST_KV = 0.9
_MOST_WAITING_SHARE = 8


class EngineFacts(NamedTuple):
    """last_other_s: when there was last a request that is not a batch's; the present time if there is one. kv_share:
    share of KV blocks in use. num_waiting: all waiting requests. batch_size: sequences in the last iteration."""

    max_num_seqs: int
    batch_size: int
    num_waiting: int
    kv_share: float
    last_other_s: float


class IdleShare:
    """Small while other requests are served, and when it was not asked for a while. When the others are gone it grows
    to nearly all sequences, without filling the memory or the queue. A line may have several sequences; `batch_size`
    counts these. Must be asked often while lines wait; has no clock of its own."""

    def __init__(self) -> None:
        self._share = 0.0
        self._asked_s = -math.inf

    def most(self, facts: EngineFacts, num_running: int, now_s: float) -> int:
        """How many lines may run now. If more do (`num_running`), they are not stopped."""
        seats = facts.max_num_seqs
        full = max(1, seats - max(1, seats // _SPARE_SHARE))
        beside = max(1, seats // _BESIDE_SHARE)
        elapsed_s, self._asked_s = max(0.0, now_s - self._asked_s), now_s
        if now_s - facts.last_other_s < QUIET_S or elapsed_s > QUIET_S:  # or nothing waited
            self._share = float(beside)
        else:
            self._share = min(float(full), max(beside, self._share) * 2.0 ** (elapsed_s / _DOUBLING_S))
        is_crowded = (
            facts.batch_size >= full
            or facts.kv_share > _MOST_KV
            or facts.num_waiting > max(1, full // _MOST_WAITING_SHARE)
        )
        return min(int(self._share), max(1, num_running)) if is_crowded else int(self._share)
