"""Predictions next to what was measured: of iterations, transfers, and every preemption of a request.

The ledger decides nothing. It feeds measurements to the predictors, and reports prediction errors to the metrics.
"""

from __future__ import annotations

import math
from dataclasses import replace

from service.core.block_moves import FinishedTransfer, Transfer
from service.core.iteration import IterationPlan
from service.core.scheduled_sequence import ScheduledSequence
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.core.stats import Prediction, PreemptionStats
from service.prediction.execution_time import ExecutionTime
from service.prediction.iteration_time import DECODE_EVERY
from service.prediction.preemption_cost import PreemptionCost, Recovery, RecoveryCosts
from service.prediction.swap_time import Copies
from service.prediction.workload import Workload

WAIT_RATE = 1 / 8


class RecoveryLedger:
    """Keeps predictions until the outcome is measured. Engine thread only.

    draft_wait_s: moving average over iterations with drafts: how long the device was idle because the host had to know
        the previous ids first. 0 if the device has no clock of its own.
    """

    def __init__(self, cost: PreemptionCost) -> None:
        self._cost = cost
        self._recomputing: dict[int, tuple[SequenceGroup, Sequence]] = {}  # by sequence id
        self._carried_s: dict[int, float] = {}  # seconds of the iterations that recompute a group, by arrival order
        self._transfers: dict[int, tuple[SequenceGroup, Transfer]] = {}
        self._predictions: list[Prediction] = []
        self.draft_wait_s = 0.0
        self._num_decodes = 0
        self._last_was_awaited = True
        self._last = IterationPlan(())  # the last plan that computed anything

    def predict(self, num_tokens: int, num_kept: int, num_blocks: int) -> RecoveryCosts:
        """`PreemptionCost.predict`, beside the decodes of the last iteration."""
        return self._cost.predict(num_tokens, num_kept, num_blocks, Workload.of(self._last).decodes())

    def iteration_s(self, plan: IterationPlan) -> float | None:
        """Predicted seconds of the plan; None before enough was observed."""
        iteration_time = self._cost.iteration_time
        return iteration_time.predicted_s(Workload.of(plan, iteration_time.heat.level))

    def decodes_s(self, num_decodes: int, num_read: int) -> float | None:
        """Predicted seconds of `num_decodes` decodes that attend to `num_read` tokens in all; None as above."""
        iteration_time = self._cost.iteration_time
        return iteration_time.predicted_s(Workload.of_decodes(num_decodes, num_read, iteration_time.heat.level))

    def preempted(
        self,
        group: SequenceGroup,
        recovery: Recovery,
        num_tokens: int,
        num_blocks: int,
        costs: RecoveryCosts,
        now_s: float,
    ) -> None:
        """The group was preempted, with `num_tokens` computed tokens in `num_blocks` blocks, to return by `recovery`.
        Adds an entry to `group.preemptions`. costs: predicted before the choice."""
        if recovery is Recovery.SWAP:
            copies_s = self._cost.swap_time.there_and_back_s(num_blocks)
            group.preemptions.append(PreemptionStats("swap", num_tokens, num_blocks, now_s, copies_s))
            return
        group.preemptions.append(PreemptionStats("recompute", num_tokens, num_blocks, now_s, costs.recompute_s))
        self._recomputing.update((sequence.sequence_id, (group, sequence)) for sequence in group.live)
        self._carried_s[group.arrival_order] = 0.0

    def moves(self, group: SequenceGroup, transfer: Transfer) -> None:
        """The transfer, which is about to be launched, moves the group's blocks, out or in."""
        self._transfers[transfer.transfer_id] = (group, transfer)

    def moved(self, finished: FinishedTransfer) -> None:
        """The transfer has finished: its seconds go to the predictor and to the group's preemption entry."""
        group, transfer = self._transfers.pop(finished.transfer_id)
        if finished.seconds is None:
            return
        swap_time = self._cost.swap_time
        copies = Copies(transfer.to_host, len(transfer.device_blocks), finished.is_first)
        predicted_s = swap_time.predicted_s(copies)
        if predicted_s is not None:
            self._predictions.append(Prediction("swap", predicted_s, finished.seconds))
        swap_time.observe(copies, finished.seconds)
        _add_actual(group, "swap", finished.seconds)

    def lost_transfers(self) -> None:
        """The executor failed: transfers under way will never be reported as finished."""
        self._transfers.clear()

    def executed(self, plan: IterationPlan, took: ExecutionTime) -> None:
        """Call for every plan, in order."""
        heat, seconds = self._cost.iteration_time.heat, took.seconds
        heat.rested(took.rest_s)
        if plan.training is not None:
            self._last_was_awaited = took.is_exact
            if took.compute_s is not None:
                heat.trained(seconds)
            return
        if plan.computes:
            self._last = plan
        if self._recomputing:
            self._share_out(plan, took)
        if took.compute_s is not None:
            is_decode = _only_decodes(plan)
            if plan.num_drafts:
                self.draft_wait_s += (took.rest_s - self.draft_wait_s) * WAIT_RATE
            if not plan.adapter_loads:
                self._learn(plan, seconds, is_decode)
            heat.executed(seconds, is_decode=is_decode)
            return
        # Without draws the executor may not have waited for the device, and the next plan then waits for both.
        is_awaited = took.is_exact and plan.num_draws > 0
        is_timed = is_awaited and self._last_was_awaited
        self._last_was_awaited = is_awaited or (took.is_exact and not plan.computes)
        if is_timed and not (plan.transfers or plan.adapter_loads):  # launching these also takes time
            self._learn(plan, seconds, _only_decodes(plan))

    def forget(self, group: SequenceGroup) -> None:
        """The group has ended."""
        if self._recomputing:
            for sequence in group.sequences:
                self._recomputing.pop(sequence.sequence_id, None)
            self._carried_s.pop(group.arrival_order, None)

    def take_predictions(self) -> tuple[Prediction, ...]:
        """Predictions whose outcome was measured since the last call."""
        if not self._predictions:
            return ()
        predictions, self._predictions = self._predictions, []
        return tuple(predictions)

    def _learn(self, plan: IterationPlan, seconds: float, is_decode: bool) -> None:
        if is_decode:
            self._num_decodes += 1
            if self._num_decodes % DECODE_EVERY:
                return
        iteration_time = self._cost.iteration_time
        workload = Workload.of(plan, iteration_time.heat.level)
        predicted_s = None if is_decode else iteration_time.predicted_s(workload)
        if predicted_s is not None:
            self._predictions.append(Prediction("iteration", predicted_s, seconds))
        iteration_time.observe(workload, seconds, is_decode=is_decode)

    def _share_out(self, plan: IterationPlan, took: ExecutionTime) -> None:
        """Divide the time that recomputed tokens added to the plan among their groups."""
        again: list[tuple[SequenceGroup, int]] = []
        others: list[ScheduledSequence] = []
        for item in plan.scheduled:
            num_again = 0
            if item.sequence_id in self._recomputing:
                group, sequence = self._recomputing[item.sequence_id]
                num_again = min(len(item.token_ids), max(0, sequence.recompute_until - item.num_computed_tokens))
                again.append((group, num_again))
                if item.num_computed_tokens + len(item.token_ids) >= sequence.recompute_until:
                    del self._recomputing[item.sequence_id]
            if num_again < len(item.token_ids):
                others.append(_after(item, num_again) if num_again else item)
        num_tokens = sum(num_again for _, num_again in again)
        if num_tokens:
            without = replace(plan, scheduled=tuple(others))
            more_s = max(0.0, took.seconds - self._predicted_s(without))
            for group, num_again in again:
                _add_actual(group, "recompute", more_s * num_again / num_tokens)
        for group in {group.arrival_order: group for group, _ in again}.values():
            self._carried(group, took.seconds if took.is_exact or took.compute_s is not None else math.inf)

    def _carried(self, group: SequenceGroup, seconds: float) -> None:
        """An iteration that recomputed part of the group took `seconds`. After its last part, make the Prediction."""
        carried_s = self._carried_s[group.arrival_order] = self._carried_s.get(group.arrival_order, 0.0) + seconds
        if any(sequence.sequence_id in self._recomputing for sequence in group.live):
            return
        del self._carried_s[group.arrival_order]
        last = group.preemptions[-1]
        if last.recovery != "recompute" or last.predicted_s is None or last.actual_s is None:
            return
        if carried_s < math.inf:
            foretold_s = carried_s - last.actual_s + last.predicted_s
            self._predictions.append(Prediction("recompute", foretold_s, carried_s))

    def _predicted_s(self, plan: IterationPlan) -> float:
        """Seconds of the iteration; 0 if it computes nothing, or if they are unknown."""
        return (self.iteration_s(plan) or 0.0) if plan.computes else 0.0


def _only_decodes(plan: IterationPlan) -> bool:
    return plan.num_scheduled_tokens == plan.num_sequences


def _after(item: ScheduledSequence, num_tokens: int) -> ScheduledSequence:
    """The item without its first `num_tokens` tokens."""
    start, rest = item.num_computed_tokens + num_tokens, item.token_ids[num_tokens:]
    return item._replace(num_computed_tokens=start, token_ids=rest)


def _add_actual(group: SequenceGroup, recovery: str, seconds: float) -> None:
    last = group.preemptions[-1]
    if last.recovery == recovery:  # else it was preempted again, and this belongs to an earlier preemption
        group.preemptions[-1] = replace(last, actual_s=(last.actual_s or 0.0) + seconds)
