"""The engine's executor with several ranks: sends each plan to the others and runs rank 0's part."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from service.core.block_moves import FinishedTransfer
from service.core.iteration import IterationPlan, IterationResult
from service.distributed.control_ring import MessageKind, MessageWriter, ReaderStalled
from service.distributed.drawn_messages import write_drawn
from service.distributed.integers import IntegerWriter
from service.distributed.mask_messages import ToldMasks
from service.distributed.plan_codec import PlanEncoder
from service.distributed.plan_follower import RankUseless
from service.distributed.rank_loss import RankLoss
from service.distributed.rank_status import Fact, RankStatuses
from service.distributed.stage_shares import StageShares
from service.engine.ports import Executor, PendingIteration

logger = logging.getLogger(__name__)

AGREES_WITHIN_S = 5.0
"""A plan that fails on rank 0 fails on the others at the same place and about the same time: when their devices have
done what was launched before (settled_failures.py)."""

_LOOK_EVERY_S = 0.0005


class ToldExecutor:
    """An Executor. Engine thread only.

    local: rank 0's own part. take_dropped: ids of adapters that are no longer in use, each once. num_peers: the number
    of ranks in rank 0's stage, which are the first ones; None: all ranks.

    A plan is sent before rank 0 starts it, so the others have it while their devices still compute the one before. Rank
    0 waits for its own results only, except in three cases:

    - A transfer is finished when every rank has finished it.
    - Layer steps of a training are done when every stage has done them (stage_shares.py).
    - A plan that fails on rank 0 must fail on all ranks of its stage. Otherwise their states differ and the ranks are
      lost.

    Rank 0 is in the last stage. If a plan fails there, the earlier stages have already handed it on, and it counts as
    done for them. What fails on an earlier stage alone means that the ranks are lost.
    """

    def __init__(
        self,
        local: Executor,
        writer: MessageWriter,
        statuses: RankStatuses,
        loss: RankLoss,
        take_dropped: Callable[[], Sequence[int]] = tuple,
        num_peers: int | None = None,
    ) -> None:
        self._local = local
        self._writer = writer
        self._statuses = statuses
        self._others = range(1, statuses.num_ranks)
        self._peers = self._others if num_peers is None else range(1, num_peers)
        self._loss = loss
        num_peers = num_peers or statuses.num_ranks
        self._shares = StageShares(range(num_peers, statuses.num_ranks, num_peers), statuses, loss)
        self._take_dropped = take_dropped
        self._encoder = PlanEncoder()
        self._num_plans = 0
        self._last_failed = 0
        self._held: dict[int, FinishedTransfer] = {}

    def launch(self, plan: IterationPlan) -> PendingIteration:
        self._check()
        self._num_plans = number = self._num_plans + 1
        masks = None if plan.masks is None else ToldMasks(plan.masks, self._writer)
        try:
            self._tell_dropped()
            self._writer.write(MessageKind.PLAN, self._encoder.encode(plan))
        except ReaderStalled as fault:
            self._loss.declare(str(fault))
            raise
        try:
            pending = self._local.launch(plan if masks is None else replace(plan, masks=masks))
        except RankUseless as fault:
            self._loss.declare(f"rank 0: {fault}")
            raise
        except BaseException:
            self.failed(number, plan, masks)
            raise
        return _ToldIteration(pending, number, self, plan, masks)

    def completed(
        self, number: int, plan: IterationPlan, masks: ToldMasks | None, result: IterationResult
    ) -> IterationResult:
        """Plan `number` is computed. Returns its result, with the transfers that have finished on every rank."""
        self._settle(masks)
        self._tell_drawn(number, plan, result.token_ids)
        if result.training is not None:
            result = replace(result, training=self._shares.completed(number, result.training))
        self._statuses.note_computed(0, result.compute_s)
        self._statuses.set(0, Fact.PLANS_DONE, number)
        if not (result.finished_transfers or self._held):
            return result
        self._held |= {each.transfer_id: each for each in result.finished_transfers}
        finished = self._take_finished()
        while plan.awaits_transfer and not finished and self._held:
            self._check()
            time.sleep(_LOOK_EVERY_S)
            finished = self._take_finished()
        return replace(result, finished_transfers=finished)

    def failed(self, number: int, plan: IterationPlan, masks: ToldMasks | None) -> None:
        """Plan `number` has failed on rank 0. Returns when it has failed on all ranks of this stage, or the ranks are
        lost."""
        self._settle(masks)
        self._tell_drawn(number, plan, ())
        self._held.clear()
        self._last_failed = number
        self._statuses.set(0, Fact.LAST_FAILED, number)
        self._statuses.set(0, Fact.PLANS_DONE, number)
        deadline_s = time.monotonic() + AGREES_WITHIN_S
        while any(self._statuses.get(rank, Fact.PLANS_DONE) < number for rank in self._peers):
            if self._loss.reason is not None:
                return
            if time.monotonic() > deadline_s:
                break
            time.sleep(_LOOK_EVERY_S)
        differing = [rank for rank in self._peers if self._statuses.get(rank, Fact.LAST_FAILED) < number]
        if differing:
            self._loss.declare(f"an iteration failed on rank 0, but not on rank {differing[0]}")

    def _tell_dropped(self) -> None:
        if dropped := self._take_dropped():
            message = IntegerWriter()
            message.many(dropped)
            self._writer.write(MessageKind.ADAPTERS_DROPPED, message.message())

    def _settle(self, masks: ToldMasks | None) -> None:
        if masks is not None:
            self._tell(masks.settle)

    def _tell_drawn(self, number: int, plan: IterationPlan, token_ids: tuple[int, ...]) -> None:
        if len(self._peers) < len(self._others) and plan.num_draws:
            self._tell(lambda: self._writer.write(MessageKind.DRAWN, write_drawn(number, token_ids)))

    def _tell(self, write: Callable[[], None]) -> None:
        try:
            write()
        except ReaderStalled as fault:
            self._loss.declare(str(fault))

    def _check(self) -> None:
        """Raises ServerError if the ranks are lost; a plan that failed on another rank but not on rank 0 makes them
        lost."""
        self._loss.check()
        for rank in self._others:
            failed = self._statuses.get(rank, Fact.LAST_FAILED)
            if self._last_failed < failed <= self._statuses.get(0, Fact.PLANS_DONE):
                self._loss.declare(f"an iteration failed on rank {rank}, but not on rank 0")
                self._loss.check()

    def _take_finished(self) -> tuple[FinishedTransfer, ...]:
        """Transfers that all ranks have finished. Ids grow, and each rank finishes transfers in order."""
        finished_by_all = min(self._statuses.get(rank, Fact.TRANSFERS_FINISHED) for rank in self._others)
        done = [transfer_id for transfer_id in self._held if transfer_id < finished_by_all]
        return tuple(self._held.pop(transfer_id) for transfer_id in done)


class _ToldIteration:
    """Rank 0's part of an iteration that all ranks compute."""

    def __init__(
        self,
        pending: PendingIteration,
        number: int,
        executor: ToldExecutor,
        plan: IterationPlan,
        masks: ToldMasks | None,
    ) -> None:
        self._pending = pending
        self._executor = executor
        self._told = number, plan, masks
        self.is_done = pending.is_done

    def wait(self) -> IterationResult:
        try:
            result = self._pending.wait()
        except BaseException:
            self._executor.failed(*self._told)
            raise
        return self._executor.completed(*self._told, result)
