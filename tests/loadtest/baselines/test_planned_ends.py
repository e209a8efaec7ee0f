from loadtest.baselines.modelled_device import ModelledDevice
from loadtest.baselines.planned_ends import END_TOKEN_ID, PlannedEnds
from service.core.iteration import IterationPlan, IterationResult
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence

PARAMS = SamplingParams(max_tokens=9)


class _AlwaysEnd:
    """Draws the end at every position."""

    def launch(self, plan: IterationPlan) -> "_AlwaysEnd":
        self._count = sum(len(item.samples) for item in plan.scheduled)
        return self

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        return IterationResult((END_TOKEN_ID,) * self._count)


def draws(executor: PlannedEnds, computed: int, length: int, *seeds: int) -> tuple[int, ...]:
    samples = tuple(Sample(seed, seed) for seed in seeds)
    item = ScheduledSequence(0, 1, (5,) * length, computed, 0, (0,), PARAMS, samples)
    return executor.launch(IterationPlan((item,))).wait().token_ids


def test_ends_at_the_planned_position_and_nowhere_else() -> None:
    executor = PlannedEnds(_AlwaysEnd())
    executor.plan_end(7, num_tokens=6)
    assert [draws(executor, computed, 1, 7)[0] == END_TOKEN_ID for computed in (3, 4, 5)] == [False, True, False]


def test_each_choice_of_a_prompt_ends_where_it_is_planned() -> None:
    executor = PlannedEnds(ModelledDevice(16))
    executor.plan_end(0, num_tokens=5)
    executor.plan_end(1, num_tokens=9)
    assert [token == END_TOKEN_ID for token in draws(executor, 0, 4, 0, 1)] == [True, False]
