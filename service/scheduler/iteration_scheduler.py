"""Iteration-level scheduling (ORCA, section 3.1): who computes how many tokens is decided anew each iteration."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from service.core.clock import Clock
from service.core.iteration_plan import (
    PENDING_TOKEN_ID,
    BlockCopy,
    IterationPlan,
    Past,
    Sample,
    ScheduledSequence,
    Transfer,
)
from service.core.iteration_result import FinishedTransfer
from service.core.sequence import Sequence
from service.core.sequence_group import GroupStatus, SequenceGroup
from service.core.stats import Prediction
from service.kvcache.block_manager import Append, BlockManager, Fit
from service.scheduler.admission import Admission
from service.scheduler.beam_forking import continue_beams
from service.scheduler.chunk_budget import ChunkBudget
from service.scheduler.history import History
from service.scheduler.memory_need import num_shared_tokens
from service.scheduler.preemption import Preemption, Recovery, may_be_preempted, num_computed_tokens
from service.scheduler.recovery_ledger import RecoveryLedger
from service.scheduler.request_pool import RequestPool
from service.scheduler.scheduling_policy import SchedulingPolicy


@dataclass(slots=True)
class DecisionTally:
    """Counts for the metrics; `core/stats.py` says what each one means."""

    num_dropped: int = 0
    num_swapped: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    swapped_blocks: int = 0
    predictions: tuple[Prediction, ...] = ()


class IterationScheduler:
    """One scheduler over one request pool, asking small policies. Engine thread only.

    Each iteration: running sequences that decode get their one token; then the chunk budget's tokens go to
    prompts, in order of their start, cut into chunks; then waiting requests are admitted, in the policy's order,
    while budget, seats and memory last. The first that does not fit ends the admissions: nobody is overtaken for
    being large. If the running groups cannot all grow, the policy's victim is preempted, whole; it returns from host
    memory or is recomputed (PagedAttention, section 4.5). Who has been preempted often enough is spared. Blocks that
    are on their way to the host are not free yet: who needs them sits out until they are. The budget exceeds the
    seats, so the first prompt always advances.

    An iteration may be decided while those before it still run (`finish_iteration` has not been called for them).
    Then nothing is taken from a running sequence: if memory runs out, the decision waits until nothing runs. What a
    sequence holds when it ends is given back once no iteration runs that it is part of.
    """

    def __init__(
        self,
        blocks: BlockManager,
        admission: Admission,
        policy: SchedulingPolicy,
        preemption: Preemption,
        ledger: RecoveryLedger,
        chunk_budget: ChunkBudget,
        history: History,
        clock: Clock,
        *,
        max_num_seqs: int,
        max_preemptions: int,
    ) -> None:
        self.blocks = blocks
        self.pool = RequestPool()
        self._admission = admission
        self._policy = policy
        self._preemption = preemption
        self._ledger = ledger
        self._chunk_budget = chunk_budget
        self._history = history
        self._clock = clock
        self._max_num_seqs = max_num_seqs
        self._max_preemptions = max_preemptions
        self._released: list[int] = []
        self._tally = DecisionTally()
        self._running: deque[list[SequenceGroup]] = deque()
        self._num_finished = 0
        self._leaving: list[Sequence] = []

    def add(self, group: SequenceGroup) -> None:
        """Put an accepted request into the pool."""
        self.pool.add(group)
        self._history.arrived(group.request.client)

    def schedule(self) -> IterationPlan:
        """Decide the next iteration, which is then launched. Empty if nothing can run before those that run now have
        finished; if none does, then nothing waits either."""
        growing = [group for group in self.pool.running if self._lacks_room(group)]
        if self._running and not self._can_grow(growing):
            return IterationPlan(())
        draft = _Draft()
        preempted = self._make_room(growing, draft)
        self._schedule_running(draft)
        if not preempted and not draft.sitting_out:
            self._admit(draft)
        awaits_transfer = not (draft.scheduled or self._running) and self.blocks.swap_space.has_transfers
        if not (draft.scheduled or draft.transfers or awaits_transfer):
            return IterationPlan(())
        released, self._released = tuple(self._released), []
        self._begin(draft)
        return IterationPlan(
            tuple(draft.scheduled), tuple(draft.copies), released, tuple(draft.transfers), awaits_transfer
        )

    def finish_iteration(self) -> list[SequenceGroup]:
        """The oldest iteration that runs has ended, whatever came of it. The groups of its `scheduled`, in order."""
        self._num_finished += 1
        leaving, self._leaving = self._leaving, []
        for sequence in leaving:
            self._free(sequence)
        return self._running.popleft()

    def release_again(self, sequence_ids: tuple[int, ...]) -> None:
        """The executor may not have heard of these: the plan that told it has failed."""
        self._released += [i for i in sequence_ids if self.pool.member(i) is None]

    def finish_transfers(self, finished: tuple[FinishedTransfer, ...]) -> None:
        """The executor says that these copies are done."""
        for transfer in finished:
            self.blocks.swap_space.finish(transfer.transfer_id)
            self._ledger.moved(transfer)

    def lose_transfers(self) -> None:
        """The executor failed: what was on the move has nowhere to go, and its owners have ended."""
        self.blocks.swap_space.finish_all()
        self._ledger.lost_transfers()

    def observe(self, plan: IterationPlan, seconds: float) -> None:
        """The plan took so long to execute."""
        self._ledger.executed(plan, seconds)

    def note_computed(self, group: SequenceGroup, sequence: Sequence, start: int, end: int) -> None:
        """Tokens `start` to `end` of the sequence are there; its full blocks may serve others from now on."""
        self._history.computed(group.request.client, end - start)
        self.blocks.cache_prefix(sequence, group.request.cache_salt, end)

    def note_generated(self, group: SequenceGroup, num_tokens: int) -> None:
        """So many tokens of the group were drawn."""
        self._history.generated(group.request.client, num_tokens)

    def fork_choices(self, group: SequenceGroup) -> None:
        """The prompt is computed: the other choices share all of its blocks from now on."""
        leader = group.leader
        for sequence in group.live[1:]:
            self.blocks.fork(leader.sequence_id, sequence.sequence_id, leader.num_computed_tokens)
            sequence.num_computed_tokens = leader.num_computed_tokens
            sequence.num_cached_blocks = leader.num_cached_blocks
            sequence.block_digests = leader.block_digests.copy()
        group.is_forked = True

    def continue_beams(self, group: SequenceGroup, parents: list[int], token_ids: list[int]) -> None:
        """Beam i goes on from what beam parents[i] was, with token_ids[i]. The prompt's one beam becomes all."""
        if not group.is_forked:
            self.fork_choices(group)
        continue_beams(group.live, parents, token_ids, self.blocks)

    def end_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Free what a live sequence holds, however it ends; the last one ends its group."""
        sequence.drop_pending()
        if sequence is group.leader and len(group.live) > 1:
            self._hand_over_lead(group)
        self.pool.remove_sequence(group, sequence)
        self._free(sequence)
        self._history.choice_ended(sequence.num_output_tokens)
        if not group.live:
            self.pool.remove(group)
            self._ledger.forget(group)
            self._history.request_ended(group.request.client)

    def end_group(self, group: SequenceGroup) -> None:
        """End every live sequence of the group."""
        for sequence in list(reversed(group.live)):
            self.end_sequence(group, sequence)

    def take_tally(self) -> DecisionTally:
        """What was decided since the last call."""
        tally, self._tally = self._tally, DecisionTally()
        tally.predictions = self._ledger.take_predictions()
        return tally

    def num_cached_tokens(self) -> int:
        """Tokens that the device's used blocks hold, those of a shared block counted once.

        Blocks on their way to the host count as empty.
        """
        blocks = self.blocks
        unfilled = 0
        for group in self.pool.running:
            last_blocks = set()
            for sequence in group.computing:
                block_ids = blocks.table(sequence.sequence_id).block_ids
                if block_ids[-1] not in last_blocks:  # else forked, and not yet written on
                    unfilled += len(block_ids) * blocks.block_size - sequence.num_computed_tokens
                    last_blocks.add(block_ids[-1])
        num_used = blocks.pool.num_used - blocks.swap_space.num_departing
        return max(0, num_used * blocks.block_size - unfilled)

    def _begin(self, draft: _Draft) -> None:
        """What the draft computes counts as computed. The next iteration may go on before an id that it draws is
        known, unless that is what the choices fork with, or the host has to look at every id."""
        self._running.append([group for group, _, _ in draft.shares])
        number = self._num_finished + len(self._running)
        for (group, sequence, end), item in zip(draft.shares, draft.scheduled, strict=True):
            sequence.num_computed_tokens = end
            sequence.last_iteration = number
            if item.samples and group.is_forked and group.runs_ahead:
                sequence.token_ids.append(PENDING_TOKEN_ID)

    def _can_grow(self, growing: list[SequenceGroup]) -> bool:
        """Whether there are blocks for these groups' next tokens, or will be once transfers have finished."""
        needed = sum(self._num_blocks_to_grow(group) for group in growing)
        return needed <= self.blocks.pool.num_free + self.blocks.swap_space.num_departing

    def _make_room(self, growing: list[SequenceGroup], draft: _Draft) -> bool:
        """Blocks for the next token of every running sequence; True if some group was preempted for them."""
        num_running = len(self.pool.running)
        while not self._can_grow(growing):
            resting = [group for group in self.pool.running if not self._is_moving(group)]
            victim = self._policy.victim(may_be_preempted(resting, self._max_preemptions), self._clock.now_s())
            if victim in growing:
                growing.remove(victim)
            self._preempt(draft, victim)
        for group in growing:
            if self._num_blocks_to_grow(group) <= self.blocks.pool.num_free:
                self._grow(group, draft)
            else:
                draft.sitting_out.add(group.arrival_order)
        return len(self.pool.running) < num_running

    def _lacks_room(self, group: SequenceGroup) -> bool:
        """Whether the group may need a block. One choice alone shares nothing that it writes; several may."""
        if len(group.live) > 1:
            return not self._is_moving(group)
        sequence = group.live[0]
        num_blocks = len(self.blocks.table(sequence.sequence_id).block_ids)
        return num_blocks * self.blocks.block_size < sequence.num_tokens_to_cache and not self._is_moving(group)

    def _is_moving(self, group: SequenceGroup) -> bool:
        swap_space = self.blocks.swap_space
        return swap_space.has_transfers and swap_space.is_moving(group.leader.sequence_id)

    def _num_blocks_to_grow(self, group: SequenceGroup) -> int:
        return self.blocks.num_blocks_to_append(self._appends(group))

    def _grow(self, group: SequenceGroup, draft: _Draft) -> None:
        for append in self._appends(group):
            draft.copies += self.blocks.append(*append)

    def _appends(self, group: SequenceGroup) -> list[Append]:
        """Room for every token that there is. The shared prefix is written for all: no choice's own write."""
        shared = num_shared_tokens(group.request, self.blocks.block_size)
        return [
            (s.sequence_id, s.num_tokens_to_cache, max(s.num_computed_tokens, shared))
            for s in group.computing
            if s.num_tokens_to_compute > 0
        ]

    def _preempt(self, draft: _Draft, group: SequenceGroup) -> None:
        self.pool.pause(group)
        group.num_preemptions += 1
        sequence_ids = [s.sequence_id for s in group.computing]
        num_tokens, num_blocks = num_computed_tokens(group), self.blocks.num_distinct_blocks(sequence_ids)
        costs = self._ledger.predict(num_tokens, self._num_kept_tokens(group), num_blocks)
        has_room = num_blocks <= self.blocks.swap_space.num_free
        recovery = self._preemption.choose(group, costs) if has_room else Recovery.RECOMPUTE
        self._ledger.preempted(group, recovery, num_tokens, num_blocks, costs, self._clock.now_s())
        if recovery is Recovery.SWAP:
            transfer = self.blocks.swap_out(sequence_ids)
            self._ledger.moves(group, transfer)
            draft.transfers.append(transfer)
            self._released += sequence_ids
            self._tally.num_swapped += 1
            self._tally.swapped_blocks += num_blocks
            return
        self._tally.num_dropped += 1
        for sequence in group.live:
            sequence.recompute_until = max(sequence.recompute_until, sequence.num_computed_tokens)
            sequence.num_computed_tokens = 0
            sequence.num_cached_blocks = 0
            sequence.top = None
            self._free(sequence)

    def _num_kept_tokens(self, group: SequenceGroup) -> int:
        """Tokens that others use too and that the prefix cache knows: they need not be computed again."""
        prefix = self.blocks.match_prefix(group.leader, group.request.cache_salt)
        return self.blocks.num_also_held_by_others(prefix, len(group.computing)) * self.blocks.block_size

    def _schedule_running(self, draft: _Draft) -> None:
        prefilling: list[tuple[SequenceGroup, Sequence]] = []
        all_run = not draft.sitting_out and not self.blocks.swap_space.has_transfers
        for group in self.pool.running:
            if not all_run and (group.arrival_order in draft.sitting_out or self._is_moving(group)):
                continue
            for sequence in group.computing:
                if not self._has_its_prefix(group, sequence):
                    continue
                num_tokens = sequence.num_tokens_to_compute
                if num_tokens == 1:
                    self._schedule_tokens(draft, group, sequence, sequence.num_tokens)
                elif num_tokens > 1:
                    prefilling.append((group, sequence))
        if prefilling or self.pool.waiting:
            start = prefilling[0][1].num_computed_tokens if prefilling else 0
            draft.budget = self._chunk_budget.num_tokens(draft.scheduled, start)
        for group, sequence in prefilling:
            if draft.budget > 0:
                end = min(sequence.num_computed_tokens + draft.budget, sequence.num_tokens)
                self._schedule_tokens(draft, group, sequence, end)

    def _has_its_prefix(self, group: SequenceGroup, sequence: Sequence) -> bool:
        """After a preemption the leader computes what the choices share; the others wait for it."""
        leader = group.leader
        if sequence is leader:
            return True
        return leader.num_computed_tokens >= num_shared_tokens(group.request, self.blocks.block_size)

    def _admit(self, draft: _Draft) -> None:
        pool = self.pool
        seats = self._max_num_seqs - sum(len(g.live) for g in pool.running)
        if not pool.waiting or seats <= 0 or draft.budget <= 0:
            return
        now_s = self._clock.now_s()
        for group in list(self._policy.order(pool.waiting, now_s)):
            if draft.budget <= 0 or len(group.live) > seats or self._is_moving(group):
                return
            prefix = self._cached_prefix(group)
            if self._admission.fit(group, prefix, self.blocks, pool.running) is not Fit.OK:
                return
            seats -= len(group.live)
            if self.blocks.swap_space.holds(group.leader.sequence_id):
                self.pool.start(group)
                transfer = self.blocks.swap_in([s.sequence_id for s in group.computing])
                self._ledger.moves(group, transfer)
                self._tally.swapped_blocks += len(transfer.device_blocks)
                draft.transfers.append(transfer)
                continue
            self._start(group, prefix, now_s)
            leader = group.leader
            end = min(leader.num_computed_tokens + draft.budget, leader.num_tokens)
            self._schedule_tokens(draft, group, leader, end)

    def _cached_prefix(self, group: SequenceGroup) -> list[int]:
        """Blocks that need not be computed. Whose prompt is to be scored computes all of it."""
        if group.prompt_logprobs is not None:
            return []
        return self.blocks.match_prefix(group.leader, group.request.cache_salt)

    def _start(self, group: SequenceGroup, prefix: list[int], now_s: float) -> None:
        self.pool.start(group)
        self._allocate(group, prefix)
        if group.first_scheduled_s is None:
            group.first_scheduled_s = now_s
            group.num_cached_tokens = group.leader.num_computed_tokens

    def _allocate(self, group: SequenceGroup, prefix: list[int]) -> None:
        leader = group.leader
        self.blocks.allocate(leader.sequence_id, leader.num_tokens, prefix)
        leader.num_computed_tokens = len(prefix) * self.blocks.block_size
        self._tally.prefix_queried_tokens += leader.num_tokens
        self._tally.prefix_hit_tokens += leader.num_computed_tokens
        leader.num_cached_blocks = len(prefix)
        shared = num_shared_tokens(group.request, self.blocks.block_size)
        for sequence in group.computing[1:]:
            self.blocks.fork(leader.sequence_id, sequence.sequence_id, shared)
            self.blocks.append(sequence.sequence_id, sequence.num_tokens, shared)
            sequence.num_computed_tokens = shared
            sequence.num_cached_blocks = shared // self.blocks.block_size

    def _schedule_tokens(self, draft: _Draft, group: SequenceGroup, sequence: Sequence, end: int) -> None:
        """The sequence computes its tokens before position `end`, and draws if those are all."""
        start = sequence.num_computed_tokens
        sampling = group.request.sampling
        draws: tuple[Sample, ...] = ()
        if end == len(sequence.token_ids) and sampling.max_tokens > 0:
            is_one = group.is_forked or sampling.beam is not None
            draws = (sequence.draw,) if is_one else tuple(s.draw for s in group.live)
        table_start, block_ids = self.blocks.table(sequence.sequence_id).take_changes()
        past: Past | None = None
        if table_start == 0 and block_ids and sampling.looks_back:
            past = Past(tuple(sequence.token_ids[:start]), sequence.num_prompt_tokens)
        targets: tuple[int, ...] = ()
        if group.prompt_logprobs is not None:
            targets = group.request.prompt_token_ids[start + 1 : end + 1]
        draft.budget -= end - start
        draft.shares.append((group, sequence, end))
        draft.scheduled.append(
            ScheduledSequence(
                sequence.sequence_id,
                tuple(sequence.token_ids[start:end]),
                start,
                table_start,
                block_ids,
                sampling,
                draws,
                past,
                targets,
            )
        )

    def _free(self, sequence: Sequence) -> None:
        """At once, or when the last iteration that the sequence is part of has finished."""
        if sequence.last_iteration > self._num_finished:
            self._leaving.append(sequence)
        elif self.blocks.holds(sequence.sequence_id):
            self.blocks.free(sequence.sequence_id)
            self._released.append(sequence.sequence_id)

    def _hand_over_lead(self, group: SequenceGroup) -> None:
        """If the shared prefix is still being computed, the next leader goes on where the old one stopped."""
        old, new = group.live[:2]
        assert group.is_forked or group.status is GroupStatus.WAITING
        if old.num_computed_tokens < num_shared_tokens(group.request, self.blocks.block_size):
            new.num_computed_tokens = min(new.num_computed_tokens, old.num_computed_tokens)


class _Draft:
    """A plan in the making."""

    __slots__ = ("budget", "copies", "scheduled", "shares", "sitting_out", "transfers")

    def __init__(self) -> None:
        self.budget = 0  # prompt tokens left to schedule
        self.scheduled: list[ScheduledSequence] = []
        self.shares: list[tuple[SequenceGroup, Sequence, int]] = []
        self.copies: list[BlockCopy] = []
        self.transfers: list[Transfer] = []
        self.sitting_out: set[int] = set()
