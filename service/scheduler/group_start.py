"""Starts waiting groups, new or preempted: in the policy's order, while budget, sequences and memory last."""

from __future__ import annotations

import math

from service.core.clock import Clock
from service.core.request_journal import WaitReason
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager, Fit
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.background_chunks import BackgroundChunks
from service.scheduler.block_growth import BlockGrowth
from service.scheduler.forking import share_prompt
from service.scheduler.lanes import Lanes
from service.scheduler.memory_need import num_blocks_to_come
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.request_pool import RequestPool
from service.scheduler.scheduler_policies import SchedulerPolicies

_HELD = ("sequences", "memory", "adapter")
"""What running requests hold, so that ending or preempting one can help."""


class GroupStart:
    """Engine thread only. The first group that does not fit stops admission: no smaller one overtakes it. A group whose
    check raises is put aside (`take_refused`) and waits until the caller ends it."""

    def __init__(
        self,
        blocks: BlockManager,
        pool: RequestPool,
        lanes: Lanes,
        growth: BlockGrowth,
        policies: SchedulerPolicies,
        background_chunks: BackgroundChunks,
        ledger: RecoveryLedger,
        clock: Clock,
        max_num_seqs: int,
    ) -> None:
        self._blocks = blocks
        self._pool = pool
        self._lanes = lanes
        self._growth = growth
        self._admission = policies.admission
        self._policy = policies.scheduling
        self._background_chunks = background_chunks
        self._ledger = ledger
        self._clock = clock
        self._max_num_seqs = max_num_seqs
        self.others_lack_room = False
        """Whether a non-background group was last left waiting for something that background groups may hold."""
        self._refused_s = -math.inf
        self._lacked: WaitReason = "iteration"
        self._refused: list[tuple[SequenceGroup, Exception]] = []

    def let_wait(self, reason: WaitReason) -> None:
        """Record why a group has to wait on."""
        self._refused_s, self._lacked = self._clock.now_s(), reason

    def admit(self, draft: PlanDraft, *, without_background: bool = False) -> None:
        """Start groups while the draft has room. Running groups must have been scheduled already."""
        self.others_lack_room = False
        num_seated = self._num_seated(draft)
        seats = self._max_num_seqs - num_seated
        left_of_share = self._lanes.share(self._max_num_seqs, len(self._pool.waiting)) - num_seated
        if seats <= 0 or draft.budget <= 0:
            self.let_wait("sequences" if seats <= 0 else "tokens")
            self.others_lack_room = seats <= 0 and self._pool.has_others_waiting
            return
        now_s, num_promised = self._clock.now_s(), self._growth.num_promised()
        for group in self._policy.order(self._pool.waiting, now_s):
            if without_background and group.request.is_background:
                return
            if group.request.is_background:
                draft.leave_to_background(self._background_chunks.most(draft.now_s))
            if left_of_share <= 0 < draft.budget:
                self.let_wait("sequences")
                return
            try:
                prefix, lacks = self._fit(group, seats, draft.budget, num_promised)
            except Exception as fault:
                self._refused.append((group, fault))
                continue
            if lacks is not None:
                self.let_wait(lacks)
                self.others_lack_room = lacks in _HELD and not group.request.is_background
                return
            seats -= len(group.live)
            left_of_share -= len(group.live)
            group.journal.note_start(now_s, self._refused_s, self._lacked)
            self._pool.start(group)
            self._lanes.batch.start(group)
            if self._blocks.swap_space.holds(group.leader.sequence_id):
                self._swap_in(group, draft)
                self._load_adapter(group, draft)
                continue
            self._allocate(group, prefix, draft)  # before the adapter: the prefix may lie in free blocks
            self._load_adapter(group, draft)
            if group.first_scheduled_s is None:
                group.first_scheduled_s = now_s
            group.num_cached_tokens += _num_spared(group.leader)
            draft.add_chunk(group, group.leader, self._blocks.table(group.leader.sequence_id))
            num_promised += num_blocks_to_come(group, self._blocks)

    def take_refused(self) -> list[tuple[SequenceGroup, Exception]]:
        """The groups refused since the last call, each with the exception of its check."""
        refused, self._refused = self._refused, []
        return refused

    def describe_wait(self) -> str:
        """Who waits and what resources there are, for the log. Names no client."""
        pool, blocks, host = self._pool, self._blocks.pool, self._blocks.swap_space
        slots = self._blocks.adapter_slots
        first = pool.waiting[0] if pool.waiting else None
        of_first = (
            "no request waits"
            if first is None
            else f"the first, {first.request.request_id}, has {first.num_tokens_to_compute} tokens to compute for"
            f" {len(first.live)} sequences and last waited for: {self._lacked}"
        )
        return (
            f"requests: {len(pool.waiting)} waiting, {len(pool.running)} running; {of_first}; KV blocks:"
            f" {blocks.num_free} of {blocks.num_blocks} free, {slots.num_blocks} with adapters"
            f" ({slots.num_pinned_blocks} in use), {self._blocks.arena.num_idle_blocks} lent to a training;"
            f" host blocks: {host.num_free} free, {host.num_used} used; at most {self._max_num_seqs} sequences run"
        )

    def _num_seated(self, draft: PlanDraft) -> int:
        """Sequences that count against max_num_seqs. One whose last token is already being drawn does not."""
        unbatched = (sequence for group in self._lanes.batch.unbatched.values() for sequence in group.live)
        return len(draft.decodes) + sum(not sequence.is_drawn_out for sequence in unbatched)

    def _fit(
        self, group: SequenceGroup, seats: int, budget: int, num_promised: int
    ) -> tuple[list[int], WaitReason | None]:
        """The group's cached blocks, and what it lacks to start (None: nothing)."""
        if budget <= 0:
            return [], "tokens"
        if len(group.live) > seats:
            return [], "sequences"
        if self._growth.is_swapping(group):
            return [], "transfer"
        adapter, slots = group.request.adapter, self._blocks.adapter_slots
        if adapter is not None and not slots.has_slot_for(adapter):
            return [], "adapter"
        prefix = self._cached_prefix(group)
        if self._admission.fit(group, prefix, self._blocks, self._pool.running, num_promised) is Fit.OK:
            return prefix, None
        is_there = adapter is None or slots.is_resident(adapter)
        return prefix, "memory" if is_there else "adapter"

    def _cached_prefix(self, group: SequenceGroup) -> list[int]:
        """Cached blocks of the group's prompt; none if all of it must be computed, or with a sliding window and
        several choices: what is cached for the leader's position need not be what its siblings will see."""
        if group.needs_whole_prompt or (self._blocks.window is not None and len(group.computing) > 1):
            return []
        return self._blocks.match_prefix(group.leader, group.request.prefix_salt)

    def _swap_in(self, group: SequenceGroup, draft: PlanDraft) -> None:
        transfer = self._blocks.swap_in([s.sequence_id for s in group.computing])
        self._ledger.moves(group, transfer)
        draft.tally.swapped_blocks += len(transfer.device_blocks)
        draft.transfers.append(transfer)

    def _load_adapter(self, group: SequenceGroup, draft: PlanDraft) -> None:
        """Have its adapter, if any, on the device before this plan computes. It stays while the group runs."""
        adapter = group.request.adapter
        load = None if adapter is None else self._blocks.load_adapter(adapter)
        if load is not None:
            draft.adapter_loads.append(load)
            draft.tally.num_adapter_loads += 1

    def _allocate(self, group: SequenceGroup, prefix: list[int], draft: PlanDraft) -> None:
        """Allocate the leader's first chunk. The other choices get tables once they can share its prompt."""
        blocks, leader = self._blocks, group.leader
        num_cached = blocks.num_tokens_in(len(prefix))
        blocks.allocate(leader.sequence_id, min(num_cached + draft.budget, leader.num_tokens), prefix)
        leader.num_computed_tokens = num_cached
        leader.num_cached_blocks = num_cached // blocks.block_size
        draft.tally.prefix_queried_tokens += leader.num_tokens
        draft.tally.prefix_hit_tokens += leader.num_computed_tokens
        share_prompt(group, blocks)


def _num_spared(leader: Sequence) -> int:
    """Prompt tokens that came from cached blocks and were never computed for this request."""
    return max(0, min(leader.num_computed_tokens, leader.num_prompt_tokens) - leader.recompute_until)
