import pytest

from loadtest.baselines.modelled_device import ModelledDevice, iteration_s, swap_s
from service.core.block_moves import Transfer
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence

PARAMS = SamplingParams(max_tokens=1)


def plan(*lengths: int, context: int = 0) -> IterationPlan:
    return IterationPlan(
        tuple(
            ScheduledSequence(i, 1 + i, (5,) * length, context, 0, (0,), PARAMS, (Sample(i, i),))
            for i, length in enumerate(lengths)
        )
    )


def test_decodes_cost_little_more_together_and_prompts_what_they_are_long() -> None:
    assert iteration_s(plan(*[1] * 64)) < 1.1 * iteration_s(plan(1))
    assert iteration_s(plan(2048)) == pytest.approx(2 * iteration_s(plan(1024)), rel=0.1)
    assert iteration_s(plan(1, context=100_000)) - iteration_s(plan(1)) == pytest.approx(100_000 * 31e-9)
    assert iteration_s(plan()) == 0


def test_is_what_an_h200_was_measured_to_take() -> None:
    """Within 15 % of the ceilings of decode-64 and of prefill, 2048 tokens each."""
    assert iteration_s(plan(*[1] * 64, context=384)) == pytest.approx(5.4e-3, rel=0.15)
    assert iteration_s(plan(2048)) == pytest.approx(2048 / 43_000, rel=0.15)


def test_time_passes_when_a_plan_is_waited_for() -> None:
    device = ModelledDevice(block_size=16)
    clock = device.clock()
    with clock.working():
        pending = device.launch(plan(1, 3))
        assert clock.now_s() == 0
        result = pending.wait()
        assert clock.now_s() == pytest.approx(iteration_s(plan(1, 3)))
    assert len(result.token_ids) == 2


def test_transfers_pass_beside_computation_one_after_another() -> None:
    device = ModelledDevice(block_size=16)
    blocks = tuple(range(64))
    moving = (Transfer(0, True, blocks, blocks), Transfer(1, True, (64,), (64,)))
    assert device.run(IterationPlan((), transfers=moving)).finished_transfers == ()
    (first,) = device.run(IterationPlan((), awaits_transfer=True)).finished_transfers
    assert (first.transfer_id, first.seconds) == (0, swap_s(64, 16))
    (second,) = device.run(plan(1)).finished_transfers
    assert second.transfer_id == 1
