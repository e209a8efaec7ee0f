"""Builds the EngineSnapshot that other threads and the metrics read."""

from __future__ import annotations

from service.core.clock import Clock
from service.core.stats import NO_ADAPTERS, AdapterUse, EngineSnapshot
from service.scheduler.cached_tokens import num_cached_tokens
from service.scheduler.iteration_scheduler import IterationScheduler

KV_TOKENS_EVERY_S = 0.5


class EngineSnapshots:
    """Engine thread only."""

    def __init__(self, scheduler: IterationScheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._kv_tokens = self._kv_token_blocks = 0
        self._kv_tokens_due_s = 0.0

    def take(self, batch_size: int, num_failed_in_a_row: int) -> EngineSnapshot:
        """batch_size: sequences in the last iteration."""
        pool, blocks = self._scheduler.pool, self._scheduler.blocks
        self._count_kv_tokens()
        return EngineSnapshot(
            num_running=len(pool.running),
            num_waiting=len(pool.waiting),
            waiting_tokens=pool.waiting_tokens.total,
            distinct_waiting_tokens=pool.waiting_tokens.distinct,
            batch_size=batch_size if pool.running else 0,
            used_blocks=blocks.pool.num_used - blocks.arena.num_idle_blocks,
            arena_blocks=blocks.arena.num_idle_blocks,
            total_blocks=blocks.pool.num_blocks,
            block_size=blocks.block_size,
            kv_tokens=self._kv_tokens,
            kv_token_blocks=self._kv_token_blocks,
            num_swapped=self._count_swapped(),
            num_failed_in_a_row=num_failed_in_a_row,
            adapters=self._adapter_use(),
            longest_sequence=blocks.longest_sequence,
            num_layer_groups=blocks.num_groups,
        )

    def _adapter_use(self) -> AdapterUse:
        pool, slots = self._scheduler.pool, self._scheduler.blocks.adapter_slots
        if not slots.num_slots:
            return NO_ADAPTERS
        running, waiting = pool.num_running_by_adapter, pool.num_waiting_by_adapter
        return AdapterUse(slots.num_slots, len(slots), slots.num_blocks, dict(running), dict(waiting))

    def _count_swapped(self) -> int:
        swap_space = self._scheduler.blocks.swap_space
        if not swap_space.num_used:
            return 0
        return sum(swap_space.holds(group.leader.sequence_id) for group in self._scheduler.pool.preempted)

    def _count_kv_tokens(self) -> None:
        """Renew the count at most every KV_TOKENS_EVERY_S, because it visits every running sequence."""
        now_s = self._clock.now_s()
        if now_s >= self._kv_tokens_due_s or not self._scheduler.pool.running:
            blocks = self._scheduler.blocks
            self._kv_tokens = num_cached_tokens(blocks, self._scheduler.lanes)
            self._kv_token_blocks = (
                blocks.pool.num_used - blocks.arena.num_idle_blocks - blocks.adapter_slots.num_blocks
            )
            self._kv_tokens_due_s = now_s + KV_TOKENS_EVERY_S
