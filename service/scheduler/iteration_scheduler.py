"""Iteration-level scheduling (ORCA, sections 3, 4.2): who computes how many tokens is decided anew each iteration."""

from __future__ import annotations

from collections.abc import Mapping

from service.core.clock import Clock
from service.core.iteration_plan import PENDING_TOKEN_ID, IterationPlan, LockstepShares, MixedShares
from service.core.iteration_result import FinishedTransfer
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.prediction.execution_time import ExecutionTime
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.block_growth import BlockGrowth, Lacking
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.forking import continue_beams, fork_choices, hand_over_lead, has_its_prefix
from service.scheduler.group_preemption import GroupPreemption
from service.scheduler.group_start import GroupStart
from service.scheduler.history import History
from service.scheduler.launched_iterations import IterationGroups, LaunchedIterations
from service.scheduler.lockstep import Lockstep
from service.scheduler.lockstep_members import LockstepMembers
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.request_pool import RequestPool
from service.scheduler.scheduler_policies import SchedulerPolicies


class IterationScheduler:
    """One scheduler over one request pool, asking small policies (`SchedulerPolicies`). Engine thread only.

    Each iteration: running sequences that decode get their one token; then the chunk budget's tokens go to
    prompts, in order of their start, cut into chunks; then waiting requests are admitted, in the policy's order,
    while budget, seats and memory last. If the running groups cannot all grow, the policy's victim is preempted,
    whole; it returns from host memory or is recomputed (PagedAttention, section 4.5). Blocks being copied to the host
    are not free yet, and a group being copied back cannot be preempted: groups that need their blocks sit out. The
    budget exceeds the seats, so the first prompt always advances.

    An iteration may be decided while those before it still run (`finish_iteration` has not been called for them).
    Then nothing is taken from a running sequence: if memory runs out, the decision waits until nothing runs.
    """

    def __init__(
        self,
        blocks: BlockManager,
        policies: SchedulerPolicies,
        ledger: RecoveryLedger,
        history: History,
        clock: Clock,
        *,
        max_num_seqs: int,
        max_preemptions: int,
    ) -> None:
        self.blocks = blocks
        self.pool = RequestPool(policies.scheduling, blocks.tokens_per_prefix_entry)
        self.lockstep = Lockstep(blocks)
        self._ledger = ledger
        self._chunk_budget = policies.chunk_budget
        self._history = history
        self._clock = clock
        self._tally = DecisionTally()
        self._alone: LockstepMembers | None = None  # those in lockstep that the last plan held, if nobody else
        self._goes_on = False
        self._launched = LaunchedIterations(blocks)
        self._growth = BlockGrowth(blocks, self.lockstep)
        self._preemption = GroupPreemption(
            blocks, policies.scheduling, policies.preemption, ledger, self._launched, max_preemptions
        )
        self._start = GroupStart(blocks, self.pool, self.lockstep, self._growth, policies, ledger, clock, max_num_seqs)

    def add(self, group: SequenceGroup) -> None:
        """Put an accepted request into the pool. If that fails, the request can be ended as any other."""
        self._history.arrived(group.request.client)
        self.pool.add(group)

    def schedule(self) -> IterationPlan:
        """Decide the next iteration, which is then launched. Empty if nothing can run before those that run now have
        finished; if none does, then nothing waits either."""
        lacking = self._growth.lacking()
        if self._launched and not self._growth.will_have_room(lacking):
            return IterationPlan(())
        draft = PlanDraft(self._launched.next_number, self._clock.now_s(), self._tally)
        preempted = self._make_room(lacking, draft)
        self.lockstep.advance(draft)
        self._schedule_apart(draft)
        if self.pool.waiting and (preempted or draft.sitting_out):
            self._start.let_wait("memory")
        elif self.pool.waiting:
            self.lockstep.settle()  # who admits may look at what runs
            self._start.admit(draft)
        computes_nothing = draft.in_lockstep is None and not draft.scheduled
        awaits_transfer = computes_nothing and not self._launched and self.blocks.swap_space.has_transfers
        if computes_nothing and not (draft.transfers or awaits_transfer):
            return IterationPlan(())
        self._begin(draft)
        shares = draft.all_shares() if computes_nothing else self._shares(draft)
        released = self._launched.take_released()
        return IterationPlan(shares, tuple(draft.copies), released, tuple(draft.transfers), awaits_transfer)

    @property
    def is_going_on(self) -> bool:
        """Whether the last iteration has the same decodes as the one before it, and nobody else, and all of them still
        run."""
        return self._goes_on and self._alone is self.lockstep.members

    def break_off(self) -> tuple[int, ...]:
        """The executor computes something else before the next plan, which will then tell it everything anew. Returns
        the ids of the sequences that it may forget with that. Nothing runs."""
        self._goes_on, self._alone = False, None
        return self._launched.take_released()

    def describe_wait(self) -> str:
        """Who waits, and what there is for them, for the log. Names no client."""
        pool, blocks, host = self.pool, self.blocks.pool, self.blocks.swap_space
        first = pool.waiting[0] if pool.waiting else None
        of_first = (
            "none waits"
            if first is None
            else f"the first, {first.request.request_id}, has {first.num_tokens_to_compute} tokens to compute for"
            f" {len(first.live)} sequences and was last left waiting for: {self._start.lacked}"
        )
        return (
            f"{len(pool.waiting)} requests wait and {len(pool.running)} run; {of_first}; of {blocks.num_blocks} KV"
            f" blocks {blocks.num_free} are free, on the host {host.num_free} are and {host.num_used} are not;"
            f" {self._start.max_num_seqs} sequences may run"
        )

    def finish_iteration(self) -> IterationGroups:
        """The oldest iteration that runs has ended, whatever came of it."""
        whose = self._launched.finish()
        if whose.in_lockstep is not None:
            self.lockstep.finish()
        return whose

    def release_again(self, sequence_ids: tuple[int, ...]) -> None:
        """The executor may not have heard of these: the launch that told it has failed, and none came behind it."""
        self._launched.release(sequence_ids)

    def finish_transfers(self, finished: tuple[FinishedTransfer, ...]) -> None:
        """The executor says that these copies are done."""
        for transfer in finished:
            self.blocks.swap_space.finish(transfer.transfer_id)
            self._ledger.moved(transfer)

    def lose_transfers(self) -> None:
        """The executor failed: what was on the move has nowhere to go, and its owners have ended."""
        self.blocks.swap_space.finish_all()
        self._ledger.lost_transfers()

    def observe(self, plan: IterationPlan, took: ExecutionTime) -> None:
        """The plan has been executed."""
        self._ledger.executed(plan, took)

    def predicted_s(self, plan: IterationPlan) -> float | None:
        """Predicted seconds of executing the plan; None before enough has been observed."""
        return self._ledger.iteration_s(plan)

    def note_computed(self, group: SequenceGroup, sequence: Sequence, start: int, end: int) -> None:
        """Tokens `start` to `end` of the sequence are there; full blocks of its prompt may serve others from now on.
        Those of an answer do so when it ends (`cache_full_blocks`): nobody goes on from it before."""
        self._history.computed(group.request.client, end - start)
        self.blocks.cache_prefix(sequence, group.request.cache_salt, min(end, sequence.num_prompt_tokens))

    def note_decoded(self, decoded: Mapping[str, int]) -> None:
        """So many decodes of each client have computed one token and drawn one."""
        for client, num_tokens in decoded.items():
            self._history.decoded(client, num_tokens)

    def cache_full_blocks(self, group: SequenceGroup, sequence: Sequence, end: int) -> None:
        """The sequence is computed up to token `end`: its full blocks may serve others from now on."""
        self.blocks.cache_prefix(sequence, group.request.cache_salt, end)

    def cache_before_end(self, group: SequenceGroup, sequence: Sequence) -> None:
        """The sequence is about to end between two results: its full blocks may serve others."""
        self.lockstep.settle()
        if not group.num_preemptions:  # else it may just be computed again
            self.blocks.cache_decoded(sequence, group.request.cache_salt)

    def note_generated(self, group: SequenceGroup, num_tokens: int) -> None:
        """`num_tokens` tokens of the group were drawn."""
        self._history.generated(group.request.client, num_tokens)

    def fork_choices(self, group: SequenceGroup) -> None:
        """The prompt is computed: the other choices share all of its blocks from now on."""
        fork_choices(group, self.blocks)

    def continue_beams(self, group: SequenceGroup, parents: list[int], token_ids: list[int]) -> None:
        """Beam i goes on from what beam parents[i] was, with token_ids[i]. The prompt's one beam becomes all."""
        if not group.is_forked:
            fork_choices(group, self.blocks)
        continue_beams(group.live, parents, token_ids, self.blocks)

    def end_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Free what a live sequence holds, however it ends. The last one is ended by `end_group`."""
        sequence.drop_pending()
        if sequence is group.leader and len(group.live) > 1:
            hand_over_lead(group, self.blocks.block_size)
        self._launched.free(sequence)
        self.pool.remove_sequence(group, sequence)
        self._history.choice_ended(sequence.num_output_tokens)

    def end_group(self, group: SequenceGroup) -> None:
        """End every live sequence of the group, and then the group. If it raises, it may be called again and goes on
        from there: what a request holds is given back, whatever is wrong with it."""
        self.lockstep.stop(group)
        for sequence in list(reversed(group.live)):
            self.end_sequence(group, sequence)
        if self.pool.get(group.request.request_id) is group:
            self.pool.remove(group)
            self._ledger.forget(group)
            self._history.request_ended(group.request.client)

    def take_refused(self) -> list[tuple[SequenceGroup, Exception]]:
        """Waiting groups that the last decision met a fault of their own at, for the caller to end."""
        return self._start.take_refused()

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
        unfilled = self.lockstep.num_unfilled()
        for group in self.lockstep.apart.values():
            last_blocks = set()
            for sequence in group.computing:
                block_ids = blocks.table(sequence.sequence_id).block_ids
                if block_ids[-1] not in last_blocks:  # else forked, and not yet written on
                    unfilled += len(block_ids) * blocks.block_size - sequence.num_computed_tokens
                    last_blocks.add(block_ids[-1])
        num_used = blocks.pool.num_used - blocks.swap_space.num_departing
        return max(0, num_used * blocks.block_size - unfilled)

    def _make_room(self, lacking: Lacking, draft: PlanDraft) -> bool:
        """Blocks for the next token of every running sequence; True if some group was preempted for them."""
        growth, pool = self._growth, self.pool
        num_running = len(pool.running)
        if not growth.has_room(lacking):
            self.lockstep.dissolve(pool.running)
            lacking = growth.lacking()
        while not growth.will_have_room(lacking):
            victim = self._preemption.victim(pool.running)
            if growth.is_moving(victim):
                break  # it cannot be taken before it is there, and nobody gives way in its stead
            self.lockstep.stop(victim)
            self._preemption.preempt(victim, draft)
            pool.pause(victim)
            lacking = growth.lacking()
        growth.grow(lacking, draft)
        return len(pool.running) < num_running

    def _schedule_apart(self, draft: PlanDraft) -> None:
        """The sequences that are not in lockstep: first those with one token to compute, then chunks of prompts."""
        blocks = self.blocks
        prefilling: list[tuple[SequenceGroup, Sequence]] = []
        for group in self.lockstep.apart.values():
            if group.arrival_order in draft.sitting_out or self._growth.is_moving(group):
                continue
            for sequence in group.computing:
                num_tokens = sequence.num_tokens_to_compute
                if num_tokens == 0 or not has_its_prefix(group, sequence, blocks.block_size):
                    continue
                if num_tokens == 1:
                    draft.add(group, sequence, sequence.num_tokens, blocks.table(sequence.sequence_id))
                else:
                    prefilling.append((group, sequence))
        if prefilling or self.pool.waiting:
            start = prefilling[0][1].num_computed_tokens if prefilling else 0
            num_waiting = self.pool.waiting_tokens.total + sum(s.num_tokens_to_compute for _, s in prefilling)
            draft.budget = self._chunk_budget.num_tokens(draft.all_shares(), start, num_waiting)
        for group, sequence in prefilling:
            if draft.budget > 0:
                draft.add_chunk(group, sequence, blocks.table(sequence.sequence_id))

    def _shares(self, draft: PlanDraft) -> LockstepShares | MixedShares:
        """Of a plan that computes something. If its sequences are those in lockstep alone, the same as in the last such
        plan, the executor is told so: then it goes on from what it has of that plan."""
        in_lockstep = draft.in_lockstep
        alone = None if draft.scheduled or in_lockstep is None else in_lockstep.members
        self._goes_on = alone is not None and alone is self._alone
        self._alone = alone
        return draft.shares_in_lockstep.going_on() if self._goes_on else draft.all_shares()

    def _begin(self, draft: PlanDraft) -> None:
        """Count what the draft computes as computed. A drawn id becomes pending, so that the next iteration can go on
        before it is known; unless the choices of a prompt fork with it, or the host has to look at every id. A group
        whose only choice draws has only decodes ahead, and joins the lockstep."""
        self._launched.begin(IterationGroups(draft.in_lockstep, [share.group for share in draft.shares]))
        for group, sequence, end, draws in draft.shares:
            sequence.num_computed_tokens = end
            sequence.last_iteration = draft.number
            if draws and group.is_forked and group.runs_ahead:
                sequence.token_ids.append(PENDING_TOKEN_ID)
                if len(group.live) == 1 and not sequence.is_drawn_out:
                    self.lockstep.join(group, sequence)
