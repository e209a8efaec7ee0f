from loadtest.baselines.engine_system import constant_limit
from loadtest.baselines.modelled_device import ModelledDevice
from loadtest.baselines.simple_req_manager import PaddedPrefill, simple_req_manager
from loadtest.offline.replay import replay
from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from tests.loadtest.baselines.pools import pool, request

PARAMS = SamplingParams(max_tokens=1)


class _Recorder(ModelledDevice):
    def __init__(self) -> None:
        super().__init__(block_size=4)
        self.plans: list[IterationPlan] = []

    def launch(self, plan):
        self.plans.append(plan)
        return super().launch(plan)


def sequence(sequence_id: int, length: int) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, (5,) * length, 0, 0, (0,), PARAMS, (Sample(sequence_id, sequence_id),))


def test_the_batch_is_a_rectangle_of_the_longest_row() -> None:
    """64 tokens: three rows of 4 + 16 fit; with a prompt of 12 among them, two rows of 28."""
    limit = constant_limit(16)
    short = replay(simple_req_manager(pool(), limit), [request(i, 4, 4) for i in range(6)])
    assert max(i.batch_size for i in short.iterations) == 3
    mixed = [request(0, 12, 16), *(request(i, 4, 4) for i in range(1, 6))]
    outcome = replay(simple_req_manager(pool(), limit), mixed)
    first = [i.batch_size for i in outcome.iterations[:4]]
    assert max(first) == 2


def test_prompts_that_start_together_are_padded_to_the_longest() -> None:
    inner = _Recorder()
    padded = PaddedPrefill(_with(inner))
    result = padded.launch(IterationPlan((sequence(0, 20), sequence(1, 8), sequence(2, 1)))).wait()
    assert len(result.token_ids) == 3, "the padding draws nothing"
    padding, real = inner.plans
    assert padding.num_scheduled_tokens == 12
    assert real.num_scheduled_tokens == 29
    blocks = {block for item in padding.scheduled for block in item.block_ids}
    assert min(blocks) >= 16, "spare blocks only"
    padded.launch(IterationPlan((sequence(3, 1),))).wait()
    assert {item.sequence_id for item in padding.scheduled} <= set(inner.plans[1].released + inner.plans[2].released)


def test_padding_beyond_the_executors_tokens_takes_plans_of_its_own() -> None:
    inner = _Recorder()
    PaddedPrefill(_with(inner)).launch(IterationPlan((sequence(0, 30), *(sequence(i, 2) for i in range(1, 5))))).wait()
    assert [plan.num_scheduled_tokens for plan in inner.plans] == [28, 28, 28, 28, 38]


def test_equal_prompts_need_no_padding() -> None:
    inner = _Recorder()
    PaddedPrefill(_with(inner)).launch(IterationPlan((sequence(0, 8), sequence(1, 8)))).wait()
    assert len(inner.plans) == 1


def _with(inner: _Recorder):
    import dataclasses

    return dataclasses.replace(pool(), executor=inner)
