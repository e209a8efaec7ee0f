"""How many lines of batches may run: what the others leave."""

from __future__ import annotations

from typing import NamedTuple

QUIET_S = 1.0
"""So long after the last request of others has ended they are thought to come again."""
_DOUBLING_S = 0.05
"""When it is quiet, the share doubles as often, so that whoever comes at its beginning meets few prompts of ours."""
_SPARE_SHARE = 32
"""One seat in so many stays free, for whoever comes first after a quiet time."""
_BESIDE_SHARE = 64
"""While there are others, ours have one seat in so many."""
_MOST_KV = 0.9
_MOST_WAITING_SHARE = 8


class EngineFacts(NamedTuple):
    """last_other_s: when there was last a request that is no batch's; now, if there is one. kv_share: of the blocks
    that are used. num_waiting: of all requests. batch_size: sequences in the last iteration."""

    max_num_seqs: int
    batch_size: int
    num_waiting: int
    kv_share: float
    last_other_s: float


class IdleShare:
    """Asked again and again; no clock of its own. While others are served it is small. When they are gone it grows to
    all seats but a few; memory and the queue are kept from filling up. A line may be several sequences: these count in
    `batch_size`."""

    def __init__(self) -> None:
        self._share = 1.0
        self._asked_s: float | None = None

    def most(self, facts: EngineFacts, num_running: int, now_s: float) -> int:
        """Lines that may run now, of which `num_running` do: they are not stopped if they are more."""
        seats = facts.max_num_seqs
        full = max(1, seats - max(1, seats // _SPARE_SHARE))
        beside = max(1, seats // _BESIDE_SHARE)
        elapsed_s = 0.0 if self._asked_s is None else max(0.0, now_s - self._asked_s)
        self._asked_s = now_s
        if now_s - facts.last_other_s < QUIET_S:
            self._share = float(beside)
        else:
            self._share = min(float(full), max(beside, self._share) * 2.0 ** (elapsed_s / _DOUBLING_S))
        is_crowded = (
            facts.batch_size >= full
            or facts.kv_share > _MOST_KV
            or facts.num_waiting > max(1, full // _MOST_WAITING_SHARE)
        )
        return min(int(self._share), max(1, num_running)) if is_crowded else int(self._share)
