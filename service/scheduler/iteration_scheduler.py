"""Iteration-level scheduling (ORCA, sections 3, 4.2): every iteration, decide anew who computes how many tokens."""

from __future__ import annotations

from collections.abc import Iterator

from service.core.block_moves import FinishedTransfer
from service.core.clock import Clock
from service.core.iteration import IterationPlan, ScheduledDecodes
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
    """One scheduler over one request pool, which asks small policies (`SchedulerPolicies`). Engine thread only.

    Most iterations have the same decodes as the one before; `_schedule_decodes` is the fast path for those.
    `LaneScheduling` decides all others. It could decide every iteration, with the same result, only slower.

    pool, blocks, lanes, ledger, history: the scheduler's state. Applying a result updates them, too.
    group_start, group_end: how requests begin to run, and how they end. training: the training that takes turns with
    requests, if any. num_lanes: pipeline stages; each may have an iteration in flight (lanes.py). versions: numbers for
    `ScheduledDecodes.version`; pass on an earlier scheduler's if the executor is the same, so that none occurs twice.

    An iteration may be decided while earlier ones run (`finish_iteration` has not been called for them). No running
    sequence is preempted then: if memory runs out, the decision waits until nothing is in flight.
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
        self.training = TrainingTurns(policies.training, ArenaLending(blocks, clock), one_at_a_time=num_lanes > 1)
        self._clock = clock
        self._tally = DecisionTally()
        # Per lane: version and length of the last plan's decodes, if it had nothing else; lanes that repeated these.
        self._steady: dict[DecodeBatch, tuple[int, int]] = {}
        self._repeated: set[DecodeBatch] = set()
        self._launched = LaunchedIterations(blocks)
        self._growth = BlockGrowth(blocks, self.lanes)
        preemption = GroupPreemption(
            blocks, policies.scheduling, policies.preemption, ledger, self._launched, max_preemptions
        )
        background_chunks = BackgroundChunks(self.pool, policies.background_chunk)
        self._drafts = None if policies.speculation is None else DraftChoice(policies.speculation, ledger)
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
        """Put an accepted request into the pool. If this raises, the request can still be ended like any other."""
        self.history.arrived(group.request.client)
        self.pool.add(group)

    def schedule(self) -> IterationPlan:
        """Decide the next iteration, which the caller must launch. An empty plan means: nothing can run until an
        iteration in flight has finished; or, if none is in flight, no request is waiting."""
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
                break  # nor try another lane: once nothing is in flight, a request is preempted
            plan = self._schedule_lane(shortage)
            if not plan.is_empty:
                return plan
        return IterationPlan(())

    def _schedule_decodes(self, batch: DecodeBatch) -> IterationPlan | None:
        """The fast path: the lane has only its decode batch, there are blocks for it, and no request is waiting. None
        if that is not so. Groups whose last token is being drawn do not count: they compute no more. `LaneScheduling`
        would decide the same and is the plain twin."""
        if self.pool.waiting or (batch.unbatched and not batch.has_only_drawn_out):
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
        """Whether the lane's next iteration needs the ids that its last one draws. If not, choose who drafts in it."""
        if self._launched.has_drafts(batch):
            return True
        running = [group for group in self.pool.running if batch.holds(group)]
        return drafts.must_wait(batch, running, is_launched=self._launched.has(batch))

    def _schedule_lane(self, shortage: Shortage) -> IterationPlan:
        """Decide for the whole lane. Empty if none of its groups can run and none is admitted."""
        draft = PlanDraft(self._launched.next_number, self._clock.now_s(), self._tally, self.blocks.adapter_slots)
        if not self._whole_lane.decide(draft, shortage):
            return IterationPlan(())
        awaits_transfer = self._whole_lane.awaits_transfer(draft)
        groups = [advance.group for advance in draft.advances]
        self._note_launch(LaunchedGroups(draft.members, groups, self.lanes.batch, draft.has_drafts), draft.decodes)
        self._whole_lane.begin(draft)
        return draft.plan(self.blocks.take_released_rows(), awaits_transfer=awaits_transfer)

    def predicted_s(self, plan: IterationPlan) -> float | None:
        """Predicted seconds of an iteration with this plan. None before enough iterations were measured."""
        return self.training.predicted_s if plan.training is not None else self.ledger.iteration_s(plan)

    @property
    def is_steady(self) -> bool:
        """Whether every non-empty lane's last iteration had exactly the same decodes as the one before it, nothing
        else, and all of these decodes still run."""
        lanes = [batch for batch in self.lanes if batch.num_seqs]
        return bool(lanes) and all(b in self._repeated and self._steady[b][1] == len(b) for b in lanes)

    def finish_iteration(self) -> LaunchedGroups:
        """The oldest iteration in flight has ended, successfully or not. Returns the groups that were in it."""
        groups = self._launched.finish()
        if groups.batch is not None and groups.decodes is not None:
            groups.batch.finish()
        return groups

    def finish_transfers(self, finished: tuple[FinishedTransfer, ...]) -> None:
        """The executor reports that the copies of these transfers are done."""
        for transfer in finished:
            self.blocks.swap_space.finish(transfer.transfer_id)
            self.ledger.moved(transfer)

    def take_tally(self) -> DecisionTally:
        """Counts of what was decided since the last call."""
        tally, self._tally = self._tally, DecisionTally()
        if self.blocks.adapter_slots.num_slots:
            tally.num_adapter_evictions = self.blocks.adapter_slots.take_num_evicted()
        tally.predictions = self.ledger.take_predictions()
        return tally

    def _note_launch(self, groups: LaunchedGroups, decodes: ScheduledDecodes) -> None:
        """Record the launch of the current lane's iteration, and whether it repeats the one before it."""
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
