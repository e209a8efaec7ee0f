"""Iteration-level scheduling (ORCA, sections 3, 4.2): who computes how many tokens is decided anew each iteration."""

from __future__ import annotations

from collections.abc import Iterator

from service.core.clock import Clock
from service.core.iteration import FinishedTransfer, IterationPlan, ScheduledDecodes
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.arena_lending import ArenaLending
from service.scheduler.background_chunks import BackgroundChunks
from service.scheduler.block_growth import BlockGrowth, Shortage
from service.scheduler.decision_tally import DecisionTally
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.group_end import GroupEnd
from service.scheduler.group_preemption import GroupPreemption
from service.scheduler.group_start import GroupStart
from service.scheduler.history import History
from service.scheduler.lane_scheduling import LaneScheduling
from service.scheduler.lanes import Lanes, LaunchedGroups, LaunchedIterations
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.request_pool import RequestPool
from service.scheduler.scheduler_policies import SchedulerPolicies
from service.scheduler.speculation import DraftChoice
from service.scheduler.training_plans import TrainingPlans
from service.scheduler.training_turns import TrainingTurns


class IterationScheduler:
    """One scheduler over one request pool, asking small policies (`SchedulerPolicies`). Engine thread only.

    Most iterations have the same decodes as the one before: `_schedule_decodes`. All others are decided by
    `LaneScheduling`, which would decide those, too.

    pool, blocks, lanes, ledger, history: the books that it keeps. Who applies a result writes to them, too.
    group_start, group_end: how a request comes to run, and how it ends. training: the training that may have iterations
    of its own, if any. num_lanes: stages of the model, for each of which there may be an iteration in flight, of other
    requests each (lanes.py). versions: of decodes, where the executor has had another scheduler before.

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
        num_lanes: int = 1,
        versions: Iterator[int] | None = None,
    ) -> None:
        self.blocks = blocks
        self.pool = RequestPool(policies.scheduling, blocks.tokens_per_prefix_entry, blocks.adapter_slots)
        self.lanes = Lanes(blocks, num_lanes, history, versions)
        self.ledger = ledger
        self.history = history
        lending = ArenaLending(blocks, clock)
        self.training = TrainingTurns(policies.training, lending, one_at_a_time=num_lanes > 1)
        self._clock = clock
        self._tally = DecisionTally()
        # Of each lane, version and number of the last plan's decodes, if it had no others; and the same as before?
        self._steady: dict[DecodeBatch, tuple[int, int]] = {}
        self._repeated: set[DecodeBatch] = set()
        self._launched = LaunchedIterations(blocks)
        self._growth = BlockGrowth(blocks, self.lanes)
        preemption = GroupPreemption(
            blocks, policies.scheduling, policies.preemption, ledger, self._launched, max_preemptions
        )
        background_chunks = BackgroundChunks(self.pool, policies.background_chunk)
        speculation = policies.speculation
        self._drafts = None if speculation is None else DraftChoice(speculation, ledger)
        self.group_start = GroupStart(
            blocks, self.pool, self.lanes, self._growth, policies, background_chunks, ledger, clock, max_num_seqs
        )
        self.group_end = GroupEnd(blocks, self.pool, self.lanes, self._launched, self._drafts, ledger, history)
        self._training_plans = TrainingPlans(
            self.training, self.pool, self.lanes, self._launched, self.group_start, clock
        )
        self._whole_lane = LaneScheduling(
            blocks,
            self.pool,
            self.lanes,
            self._launched,
            self._growth,
            preemption,
            self.group_start,
            policies.chunk_budget,
            background_chunks,
            self._drafts,
        )

    def add(self, group: SequenceGroup) -> None:
        """Put an accepted request into the pool. If that fails, the request can be ended as any other."""
        self.history.arrived(group.request.client)
        self.pool.add(group)

    def schedule(self) -> IterationPlan:
        """Decide the next iteration, which is then launched. Empty if nothing can run before those that run now have
        finished; if none does, then nothing waits either."""
        if self.training.is_runnable:
            return self._training_plans.schedule(self._schedule_requests, self._tally)
        return self._schedule_requests()

    def _schedule_requests(self) -> IterationPlan:
        for batch in self.lanes.turns(self._launched, self.pool.running):
            if self._drafts is not None and self._must_wait_for_ids(batch, self._drafts):
                continue
            plan = self._schedule_decodes(batch)
            if plan is not None:
                return plan
            shortage = self._growth.shortage()
            if self._launched and (
                not self._growth.will_have_room(shortage) or self._whole_lane.background_is_in_the_way
            ):
                break  # and no other lane goes on: once nothing runs, somebody is preempted
            plan = self._schedule_lane(shortage)
            if not plan.is_empty:
                return plan
        return IterationPlan(())

    def _schedule_decodes(self, batch: DecodeBatch) -> IterationPlan | None:
        """The common case: the lane has nothing but its decode batch, for which there is memory, and nobody waits. None
        if that is not so. `LaneScheduling` would decide the same, and is the plain twin."""
        if batch.unbatched or self.pool.waiting:
            return None
        shortage = batch.shortage()
        if len(shortage) and len(shortage) > self.blocks.supply.num_available:
            return None
        advanced = batch.advance(self._launched.next_number, shortage)
        if advanced is None:
            return None
        members, decodes = advanced
        self._note_launch(LaunchedGroups(members, [], batch), decodes)
        released = self.blocks.take_released_rows() if self.blocks.released_rows else ()
        return IterationPlan((), released=released, decodes=decodes)

    def _must_wait_for_ids(self, batch: DecodeBatch, drafts: DraftChoice) -> bool:
        """Whether the lane's next iteration hangs on the ids of the one that runs; else who drafts in it is chosen."""
        if self._launched.has_drafts(batch):
            return True
        running = [group for group in self.pool.running if batch.holds(group)]
        return drafts.must_wait(batch, running, is_launched=self._launched.has(batch))

    def _schedule_lane(self, shortage: Shortage) -> IterationPlan:
        """Empty if none of the lane's groups can run, and none is admitted."""
        draft = PlanDraft(self._launched.next_number, self._clock.now_s(), self._tally, self.blocks.adapter_slots)
        if not self._whole_lane.decide(draft, shortage):
            return IterationPlan(())
        awaits_transfer = self._whole_lane.awaits_transfer(draft)
        groups = [advance.group for advance in draft.advances]
        self._note_launch(LaunchedGroups(draft.members, groups, self.lanes.batch, draft.has_drafts), draft.decodes)
        self._whole_lane.begin(draft)
        return draft.plan(self.blocks.take_released_rows(), awaits_transfer=awaits_transfer)

    def predicted_s(self, plan: IterationPlan) -> float | None:
        """What a plan that runs is predicted to take; None before enough has been seen."""
        return self.training.predicted_s if plan.training is not None else self.ledger.iteration_s(plan)

    @property
    def is_steady(self) -> bool:
        """Whether the last iteration, of each lane that has anybody, has the same decodes as the one before it, and
        nobody else, and all of them still run."""
        lanes = [batch for batch in self.lanes if batch.num_seqs]
        return bool(lanes) and all(b in self._repeated and self._steady[b][1] == len(b) for b in lanes)

    def finish_iteration(self) -> LaunchedGroups:
        """The oldest iteration that runs has ended, whatever came of it."""
        groups = self._launched.finish()
        if groups.batch is not None and groups.decodes is not None:
            groups.batch.finish()
        return groups

    def finish_transfers(self, finished: tuple[FinishedTransfer, ...]) -> None:
        """The executor says that these copies are done."""
        for transfer in finished:
            self.blocks.swap_space.finish(transfer.transfer_id)
            self.ledger.moved(transfer)

    def take_tally(self) -> DecisionTally:
        """What was decided since the last call."""
        tally, self._tally = self._tally, DecisionTally()
        if self.blocks.adapter_slots.num_slots:
            tally.num_adapter_evictions = self.blocks.adapter_slots.take_num_evicted()
        tally.predictions = self.ledger.take_predictions()
        return tally

    def _note_launch(self, groups: LaunchedGroups, decodes: ScheduledDecodes) -> None:
        """Of an iteration of the lane whose turn it is; and whether it repeats the one before it, if it computes."""
        batch = self.lanes.batch
        self._launched.begin(groups)
        self.lanes.note_launch()
        if groups.decodes is None and not groups.scheduled:
            return
        before = self._steady.pop(batch, None)
        self._repeated.discard(batch)
        if not groups.scheduled:
            self._steady[batch] = steady = (decodes.version, len(decodes))
            if steady == before:
                self._repeated.add(batch)
