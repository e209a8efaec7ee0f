"""Iteration-level scheduling (ORCA, section 3.1): who computes how many tokens is decided anew each iteration."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from service.core.request_journal import WaitReason
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
        self._refused_s = -math.inf
        self._lacked: WaitReason = "iteration"
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
        lacking = self._lacking()
        if self._running and not self._can_grow(lacking):
            return IterationPlan(())
        draft = _Draft(self._num_finished + len(self._running) + 1)
        preempted = self._make_room(lacking, draft)
        self._schedule_running(draft)
        if not self.pool.waiting:
            pass
        elif preempted or draft.sitting_out:
            self._let_wait("memory")
        else:
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

    def observe(self, plan: IterationPlan, seconds: float, *, is_exact: bool = True) -> None:
        """The plan took so long to execute. Not exact: nobody saw when it ended, only that it had."""
        self._ledger.executed(plan, seconds, is_exact=is_exact)

    def note_computed(self, group: SequenceGroup, sequence: Sequence, start: int, end: int) -> None:
        """Tokens `start` to `end` of the sequence are there; its full blocks may serve others from now on."""
        self._history.computed(group.request.client, end - start)
        self.blocks.cache_prefix(sequence, group.request.cache_salt, end)

    def note_decoded(self, group: SequenceGroup, sequence: Sequence, end: int) -> None:
        """The one token before `end` is computed, and one is drawn."""
        self._history.decoded(group.request.client)
        if end % self.blocks.block_size == 0:
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
        self._running.append(draft.groups)
        for group, sequence, end, draws in draft.shares:
            sequence.num_computed_tokens = end
            sequence.last_iteration = draft.number
            if draws and group.is_forked and group.runs_ahead:
                sequence.token_ids.append(PENDING_TOKEN_ID)

    def _lacking(self) -> _Lacking:
        """What the running groups need for their next tokens. One choice alone shares nothing that it writes, and needs
        nothing while its last block has room; several may have to copy."""
        blocks, lacking = self.blocks, _Lacking()
        tables, block_size, token_table = blocks.tables, blocks.block_size, blocks.token_table
        one_slot = lacking.one_slot
        none_moves = not blocks.swap_space.has_transfers
        for group in self.pool.running:
            live = group.live
            if len(live) == 1:
                sequence = live[0]
                room = len(tables[sequence.sequence_id].block_ids) * block_size
                lack = len(sequence.token_ids) - room
                if lack <= 0 or sequence.num_tokens_to_cache <= room or self._is_moving(group):
                    continue
                if lack == 1 and token_table is not None:
                    one_slot.append(group)
                else:
                    lacking.blocks.append((group, blocks.num_blocks_for(sequence.num_tokens_to_cache - room)))
            elif none_moves or not self._is_moving(group):
                lacking.blocks.append((group, blocks.num_blocks_to_append(self._appends(group))))
        return lacking

    def _can_grow(self, lacking: _Lacking) -> bool:
        """Whether there are blocks for the running groups' next tokens, or will be once transfers have finished."""
        return lacking.num_blocks <= self.blocks.pool.num_free + self.blocks.swap_space.num_departing

    def _make_room(self, lacking: _Lacking, draft: _Draft) -> bool:
        """Blocks for the next token of every running sequence; True if some group was preempted for them."""
        num_running = len(self.pool.running)
        while not self._can_grow(lacking):
            resting = [group for group in self.pool.running if not self._is_moving(group)]
            victim = self._policy.victim(may_be_preempted(resting, self._max_preemptions), self._clock.now_s())
            self._preempt(draft, victim)
            lacking = self._lacking()
        if self.blocks.token_table is not None and len(lacking.one_slot) <= self.blocks.pool.num_free:
            self.blocks.token_table.append_each([group.live[0].sequence_id for group in lacking.one_slot])
        else:
            lacking.blocks += [(group, 1) for group in lacking.one_slot]
        for group, num_blocks in lacking.blocks:
            if num_blocks <= self.blocks.pool.num_free:
                self._grow(group, draft)
            else:
                draft.sitting_out.add(group.arrival_order)
        return len(self.pool.running) < num_running

    def _is_moving(self, group: SequenceGroup) -> bool:
        swap_space = self.blocks.swap_space
        return swap_space.has_transfers and swap_space.is_moving(group.leader.sequence_id)

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
        group.journal.note_pause(self._clock.now_s())
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
            if len(group.live) == 1:
                sequence = group.live[0]
                num_tokens = sequence.num_tokens_to_compute
                if num_tokens == 1:
                    self._schedule_decode(draft, group, sequence)
                elif num_tokens > 1:
                    prefilling.append((group, sequence))
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

    def _schedule_decode(self, draft: _Draft, group: SequenceGroup, sequence: Sequence) -> None:
        """`_schedule_tokens` and `_begin` for what most iterations are made of: the only choice of a request, known to
        the executor, computes its last token. Hundreds of times an iteration, so it is spelt out."""
        table = self.blocks.tables[sequence.sequence_id]
        start, known, token_ids = sequence.num_computed_tokens, table.changed_from, sequence.token_ids
        is_plain = known > 0 and sequence.num_prompt_tokens <= start == len(token_ids) - 1 and group.is_forked
        if not is_plain:
            self._schedule_tokens(draft, group, sequence, len(token_ids))
            return
        new_blocks: tuple[int, ...] = ()
        if known != len(table.block_ids):
            _, new_blocks = table.take_changes()
        draft.groups.append(group)
        draft.scheduled.append(
            _scheduled_sequence(
                (
                    sequence.sequence_id,
                    (token_ids[start],),
                    start,
                    known,
                    new_blocks,
                    group.request.sampling,
                    sequence.draws,
                    None,
                    (),
                )
            )
        )
        sequence.num_computed_tokens = start + 1
        sequence.last_iteration = draft.number
        if group.runs_ahead:
            token_ids.append(PENDING_TOKEN_ID)

    def _has_its_prefix(self, group: SequenceGroup, sequence: Sequence) -> bool:
        """After a preemption the leader computes what the choices share; the others wait for it."""
        leader = group.leader
        if sequence is leader:
            return True
        return leader.num_computed_tokens >= num_shared_tokens(group.request, self.blocks.block_size)

    def _admit(self, draft: _Draft) -> None:
        pool = self.pool
        live = [s for g in pool.running for s in g.live]
        seats = self._max_num_seqs - sum(not s.is_drawn_out or s.last_iteration == draft.number for s in live)
        if seats <= 0 or draft.budget <= 0:
            self._let_wait("sequences" if seats <= 0 else "tokens")
            return
        now_s = self._clock.now_s()
        for group in list(self._policy.order(pool.waiting, now_s)):
            prefix, lacks = self._fit(group, seats, draft.budget)
            if lacks is not None:
                self._let_wait(lacks)
                return
            seats -= len(group.live)
            group.journal.note_start(now_s, self._refused_s, self._lacked)
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

    def _fit(self, group: SequenceGroup, seats: int, budget: int) -> tuple[list[int], WaitReason | None]:
        """The group's cached blocks, and what it cannot start for; None: it can."""
        if budget <= 0:
            return [], "tokens"
        if len(group.live) > seats:
            return [], "sequences"
        if self._is_moving(group):
            return [], "transfer"
        prefix = self._cached_prefix(group)
        fits = self._admission.fit(group, prefix, self.blocks, self.pool.running) is Fit.OK
        return prefix, None if fits else "memory"

    def _let_wait(self, reason: WaitReason) -> None:
        """Somebody waits on, for want of this."""
        self._refused_s, self._lacked = self._clock.now_s(), reason

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
            draws = sequence.draws if is_one else tuple(s.draw for s in group.live)
        table_start, block_ids = self.blocks.table(sequence.sequence_id).take_changes()
        past: Past | None = None
        if table_start == 0 and block_ids and sampling.looks_back:
            past = Past(tuple(sequence.token_ids[:start]), sequence.num_prompt_tokens)
        targets: tuple[int, ...] = ()
        if group.prompt_logprobs is not None:
            targets = group.request.prompt_token_ids[start + 1 : end + 1]
        if end - start > 1:
            group.journal.note_chunk(self._clock.now_s(), end - start, draws=bool(draws))
        draft.budget -= end - start
        draft.groups.append(group)
        draft.shares.append((group, sequence, end, draws))
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


_scheduled_sequence: Callable[[tuple[object, ...]], ScheduledSequence] = partial(tuple.__new__, ScheduledSequence)
"""What the named tuple's own constructor ends in, at half the cost."""


class _Lacking:
    """What running groups need. one_slot: at block size 1, those that need one. blocks: the others, and how many."""

    __slots__ = ("blocks", "one_slot")

    def __init__(self) -> None:
        self.one_slot: list[SequenceGroup] = []
        self.blocks: list[tuple[SequenceGroup, int]] = []

    @property
    def num_blocks(self) -> int:
        return len(self.one_slot) + sum(num_blocks for _, num_blocks in self.blocks)


class _Draft:
    """A plan in the making. number: of the iteration.

    groups: of `scheduled`, in its order. shares: (group, sequence, end, draws) of those that have not begun yet.
    """

    __slots__ = ("budget", "copies", "groups", "number", "scheduled", "shares", "sitting_out", "transfers")

    def __init__(self, number: int) -> None:
        self.number = number
        self.budget = 0  # prompt tokens left to schedule
        self.scheduled: list[ScheduledSequence] = []
        self.groups: list[SequenceGroup] = []
        self.shares: list[tuple[SequenceGroup, Sequence, int, tuple[Sample, ...]]] = []
        self.copies: list[BlockCopy] = []
        self.transfers: list[Transfer] = []
        self.sitting_out: set[int] = set()
