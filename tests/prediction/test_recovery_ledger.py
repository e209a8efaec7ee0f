from __future__ import annotations

from dataclasses import replace

import pytest

from service.core.adapter import AdapterLoad
from service.core.block_moves import FinishedTransfer, Transfer
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.core.sequence_group import SequenceGroup
from service.prediction.execution_time import ExecutionTime
from service.prediction.preemption_cost import PreemptionCost, Recovery, RecoveryCosts
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.workload import Workload
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap
from tests.engine.harness import Harness
from tests.prediction.test_preemption_cost import NOBODY, make_cost, seconds_of
from tests.scheduler.test_request_pool import make_group

OUT = Transfer(0, True, (1, 2, 3), (0, 1, 2))
BACK = Transfer(1, False, (4, 5, 6), (0, 1, 2))
UNKNOWN = RecoveryCosts(None, None)


@pytest.fixture
def cost() -> PreemptionCost:
    return make_cost()


def plan(num_tokens: int, start: int = 0, *, draws: bool = True, sequence_id: int = 0) -> IterationPlan:
    samples = (Sample(sequence_id, 0),) if draws else ()
    share = ScheduledSequence(sequence_id, 1, (0,) * num_tokens, start, 0, (), SamplingParams(max_tokens=1), samples)
    return IterationPlan((share,))


def preempted(group: SequenceGroup, num_tokens: int) -> SequenceGroup:
    for sequence in group.live:
        sequence.recompute_until = num_tokens
    return group


def test_a_prompts_iteration_is_compared_with_its_prediction(cost: PreemptionCost):
    ledger = RecoveryLedger(cost)
    ledger.executed(plan(500), ExecutionTime(0.1))
    ((predictor, predicted_s, actual_s),) = ledger.take_predictions()
    assert (predictor, actual_s) == ("iteration", 0.1)
    assert predicted_s == pytest.approx(seconds_of(0, 500), rel=1e-3)
    assert ledger.take_predictions() == ()


def test_a_victims_recovery_is_compared_with_what_was_foretold_of_it(cost: PreemptionCost):
    ledger, group = RecoveryLedger(cost), preempted(make_group("a"), 30)
    costs = ledger.predict(30, 0, 3)
    ledger.preempted(group, Recovery.RECOMPUTE, 30, 3, costs, 7.0)
    for one in (plan(20), plan(20, sequence_id=5), plan(20, start=20), plan(20, start=40)):
        ledger.executed(one, ExecutionTime(0.1))
    predictions = ledger.take_predictions()
    kinds = [prediction.predictor for prediction in predictions]
    assert sorted(kinds) == ["iteration"] * 4 + ["recompute"], "once, with the last of its 30 tokens"
    (recovery,) = [prediction for prediction in predictions if prediction.predictor == "recompute"]
    assert recovery.actual_s == pytest.approx(0.2), "of the two iterations that carried it"
    (kept,) = group.preemptions
    assert kept.predicted_s == costs.recompute_s is not None
    assert kept.actual_s is not None
    off_s = recovery.predicted_s - recovery.actual_s
    assert off_s == pytest.approx(kept.predicted_s - kept.actual_s), (
        "what it added beside others is all that is foretold"
    )


@pytest.mark.parametrize("end", ["foretold by nobody", "ended", "not timed"])
def test_a_recovery_of_which_nothing_was_foretold_or_seen_is_not_compared(cost: PreemptionCost, end: str):
    ledger, group = RecoveryLedger(cost), preempted(make_group("a"), 30)
    costs = UNKNOWN if end == "foretold by nobody" else ledger.predict(30, 0, 3)
    ledger.preempted(group, Recovery.RECOMPUTE, 30, 3, costs, 7.0)
    ledger.executed(plan(20), ExecutionTime(0.1, is_exact=end != "not timed"))
    if end == "ended":
        ledger.forget(group)
    ledger.executed(plan(20, start=20), ExecutionTime(0.1))
    assert "recompute" not in {prediction.predictor for prediction in ledger.take_predictions()}
    assert not ledger._carried_s


def test_times_that_say_nothing_are_passed_over(cost: PreemptionCost):
    ledger = RecoveryLedger(cost)
    before = cost.predict(100, 0, 1, NOBODY).recompute_s
    for _ in range(1000):
        ledger.executed(plan(100, draws=False), ExecutionTime(5.0))
        ledger.executed(plan(100), ExecutionTime(5.0))  # waits for the one before it too
    assert ledger.take_predictions() == ()
    assert cost.predict(100, 0, 1, NOBODY).recompute_s == before


@pytest.mark.parametrize("compute_s", [None, 5.0])
def test_iterations_that_load_adapters_say_nothing_of_those_that_do_not(compute_s: float | None, cost: PreemptionCost):
    ledger = RecoveryLedger(cost)
    before = cost.predict(100, 0, 1, NOBODY).recompute_s
    loading = replace(plan(100), adapter_loads=(AdapterLoad(1, 1, (5,)),))
    for _ in range(1000):
        ledger.executed(loading, ExecutionTime(5.0, compute_s=compute_s))
    assert ledger.take_predictions() == ()
    assert cost.predict(100, 0, 1, NOBODY).recompute_s == before


def test_iterations_whose_end_nobody_saw_are_passed_over_and_so_is_the_next(cost: PreemptionCost):
    ledger = RecoveryLedger(cost)
    ledger.executed(plan(100), ExecutionTime(0.001, is_exact=False))
    ledger.executed(plan(100), ExecutionTime(0.001))
    assert ledger.take_predictions() == ()
    ledger.executed(plan(100), ExecutionTime(0.1))
    assert len(ledger.take_predictions()) == 1


def test_the_predictor_learns_from_what_it_is_told(cost: PreemptionCost):
    ledger = RecoveryLedger(cost)
    for num_tokens in (100, 300, 700) * 400:
        ledger.executed(plan(num_tokens), ExecutionTime(2 * seconds_of(0, num_tokens)))
    workload = Workload.of_chunk(0, 300)
    assert cost.iteration_time.predicted_s(workload) == pytest.approx(2 * seconds_of(0, 300), rel=0.05)


def test_a_swap_costs_both_its_transfers(cost: PreemptionCost):
    ledger, group = RecoveryLedger(cost), make_group("a")
    ledger.preempted(group, Recovery.SWAP, 10, 3, RecoveryCosts(1.0, 0.5), 7.0)
    for transfer, seconds in ((OUT, 0.2), (BACK, 0.4)):
        ledger.moves(group, transfer)
        ledger.moved(FinishedTransfer(transfer.transfer_id, seconds))
    (kept,) = group.preemptions
    assert (kept.recovery, kept.num_tokens, kept.num_blocks, kept.at_s) == ("swap", 10, 3, 7.0)
    assert kept.predicted_s == pytest.approx(2 * 3e-4), "of the transfers themselves, as they are measured"
    assert kept.actual_s == pytest.approx(0.6)
    assert [p.actual_s for p in ledger.take_predictions()] == [0.2, 0.4]


def test_a_transfer_that_nobody_timed_is_no_measurement(cost: PreemptionCost):
    ledger, group = RecoveryLedger(cost), make_group("a")
    ledger.preempted(group, Recovery.SWAP, 10, 3, UNKNOWN, 7.0)
    ledger.moves(group, OUT)
    ledger.moved(FinishedTransfer(0, None))
    assert group.preemptions[0].actual_s is None
    assert ledger.take_predictions() == ()


def test_a_recomputation_costs_what_its_iterations_take_beyond_the_rest(cost: PreemptionCost):
    ledger, group = RecoveryLedger(cost), preempted(make_group("a"), 30)
    ledger.preempted(group, Recovery.RECOMPUTE, 30, 3, RecoveryCosts(1.0, 0.5), 7.0)
    other = plan(20, sequence_id=5).scheduled[0]
    ledger.executed(IterationPlan((*plan(20).scheduled, other)), ExecutionTime(0.4))
    rest = 0.4 - seconds_of(0, 20)
    ledger.executed(plan(20, start=20), ExecutionTime(0.6))  # ten of them again, ten for the first time
    rest += 0.6 - seconds_of(30, 10)
    ledger.executed(plan(1, start=40), ExecutionTime(9.0))
    (kept,) = group.preemptions
    assert kept.predicted_s == 1.0
    assert kept.actual_s == pytest.approx(rest, rel=1e-3)


def test_a_recomputation_by_itself_costs_all_of_its_iteration_and_never_less_than_nothing(cost: PreemptionCost):
    ledger, groups = RecoveryLedger(cost), [preempted(make_group("a"), 30), preempted(make_group("b"), 30)]
    for number, group in enumerate(groups):
        group.live[0].sequence_id = number
        ledger.preempted(group, Recovery.RECOMPUTE, 30, 3, UNKNOWN, 7.0)
    ledger.executed(plan(30), ExecutionTime(0.4))
    beside = (*plan(30, sequence_id=1).scheduled, *plan(500, sequence_id=5).scheduled)
    ledger.executed(IterationPlan(beside), ExecutionTime(seconds_of(0, 500) / 2))
    assert [group.preemptions[0].actual_s for group in groups] == [0.4, 0.0]


def test_a_plan_that_begins_transfers_teaches_nothing(cost: PreemptionCost):
    ledger = RecoveryLedger(cost)
    ledger.executed(IterationPlan(plan(100).scheduled, transfers=(OUT,)), ExecutionTime(5.0))
    assert ledger.take_predictions() == ()
    assert cost.predict(100, 0, 1, NOBODY).recompute_s == pytest.approx(seconds_of(0, 100), rel=1e-3)


def test_a_devices_own_clock_counts_whatever_the_host_did_meanwhile(cost: PreemptionCost):
    ledger, group = RecoveryLedger(cost), preempted(make_group("a"), 30)
    ledger.preempted(group, Recovery.RECOMPUTE, 30, 3, UNKNOWN, 7.0)
    ledger.executed(plan(30), ExecutionTime(5.0, is_exact=False, compute_s=0.2))
    ledger.executed(IterationPlan(plan(100).scheduled, transfers=(OUT,)), ExecutionTime(5.0, compute_s=0.1))
    assert [p.actual_s for p in ledger.take_predictions()] == [0.2, 0.1]
    assert group.preemptions[0].actual_s == 0.2


def test_what_the_device_computed_before_counts_until_it_has_rested(cost: PreemptionCost):
    iteration_time = cost.iteration_time
    ledger, heat = RecoveryLedger(cost), iteration_time.heat
    ledger.executed(plan(1, start=9), ExecutionTime(0.01, compute_s=0.01))
    assert heat.level == 0
    ledger.executed(plan(500), ExecutionTime(0.2, compute_s=0.2))
    hot = heat.level
    assert hot > 0.9
    ledger.executed(plan(1, start=500), ExecutionTime(0.01, compute_s=0.01))
    assert 0 < heat.level < hot
    ledger.executed(plan(500), ExecutionTime(0.2, compute_s=0.2, idle_s=10.0))
    assert heat.level == pytest.approx(hot, rel=0.01), "as after a rest"
    ledger.executed(plan(1, start=500), ExecutionTime(10.0, compute_s=0.01))
    assert heat.level < 1e-9, "the host let it rest"


def test_an_iteration_is_predicted_for_the_heat_that_it_meets(cost: PreemptionCost):
    ledger, iteration_time = RecoveryLedger(cost), cost.iteration_time
    for start in range(40):  # behind a rest, and at once behind that one
        ledger.executed(plan(400 + start), ExecutionTime(0.1, compute_s=0.1, idle_s=10.0))
        ledger.executed(plan(400 + start), ExecutionTime(0.12, compute_s=0.12))
        ledger.executed(plan(1, start=9), ExecutionTime(0.01, compute_s=0.01))
    iteration_time.fit()
    ledger.take_predictions()
    ledger.executed(plan(420), ExecutionTime(0.1, compute_s=0.1, idle_s=10.0))
    ledger.executed(plan(420), ExecutionTime(0.12, compute_s=0.12))
    behind_a_rest, at_once = ledger.take_predictions()
    assert at_once.predicted_s > 1.1 * behind_a_rest.predicted_s
    assert ledger.iteration_s(plan(420)) == pytest.approx(at_once.predicted_s, rel=0.05)


def test_the_last_preemptions_of_a_request_are_kept_and_all_are_counted():
    harness = Harness(num_blocks=6, block_size=1, max_num_batched_tokens=32, max_num_seqs=2)
    for seed in range(2):
        harness.add(harness.request((1, 2), 4, seed=seed))
    harness.run()
    (stats,) = [s for s, _, _ in harness.sink.requests if s.num_preemptions]
    assert len(stats.preemptions) == stats.num_preemptions
    for kept in stats.preemptions:
        assert kept.recovery == "recompute"
        assert kept.actual_s is not None
        assert stats.arrival_s <= kept.at_s <= stats.finished_s


def test_nothing_is_remembered_of_who_has_ended():
    for preemption in (AlwaysSwap(), AlwaysRecompute()):
        harness = Harness(
            num_blocks=9, block_size=2, max_num_batched_tokens=32, preemption=preemption, num_host_blocks=9
        )
        for seed in range(5):
            harness.add(harness.request((1, 2, 3), 9, seed=seed))
        for _ in range(12):
            harness.step()
        for request_id in harness.requests:
            harness.engine.requests.abort(request_id)
        harness.run()
        ledger = harness.scheduler.ledger
        assert not ledger._recomputing
        assert not ledger._carried_s
        assert len(ledger._transfers) == len(harness.blocks.swap_space._in_flight)


def test_what_was_under_way_when_a_request_was_preempted_anew_is_not_the_new_preemptions_cost(cost: PreemptionCost):
    ledger, group = RecoveryLedger(cost), make_group("a")
    ledger.preempted(group, Recovery.SWAP, 10, 3, UNKNOWN, 7.0)
    ledger.moves(group, BACK)
    ledger.preempted(group, Recovery.RECOMPUTE, 10, 3, UNKNOWN, 8.0)
    ledger.moved(FinishedTransfer(BACK.transfer_id, 0.4))
    assert [(kept.recovery, kept.actual_s) for kept in group.preemptions] == [("swap", None), ("recompute", None)]


def test_an_iteration_behind_transfers_that_were_waited_for_is_learnt_from(cost: PreemptionCost):
    ledger = RecoveryLedger(cost)
    ledger.executed(plan(100, draws=False), ExecutionTime(0.1))
    ledger.executed(IterationPlan((), transfers=(OUT,), awaits_transfer=True), ExecutionTime(0.1))
    ledger.executed(plan(100), ExecutionTime(0.1))
    assert len(ledger.take_predictions()) == 1
