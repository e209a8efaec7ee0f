import dataclasses

from loadtest.baselines.engine_system import constant_limit
from loadtest.baselines.modelled_device import ModelledDevice
from loadtest.baselines.simple_req_manager import PaddedBatch, rectangle_tokens, simple_req_manager
from loadtest.offline.replay import replay
from service.core.iteration import IterationPlan, IterationResult
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.core.sequence_group import SequenceGroup
from tests.loadtest.baselines.pools import pool, request

PARAMS = SamplingParams(max_tokens=1)


class _Recorder(ModelledDevice):
    def __init__(self) -> None:
        super().__init__(block_size=4)
        self.plans: list[IterationPlan] = []

    def launch(self, plan):
        self.plans.append(plan)
        return super().launch(plan)


def sequence(sequence_id: int, length: int, computed: int = 0) -> ScheduledSequence:
    draw = Sample(sequence_id, sequence_id)
    return ScheduledSequence(sequence_id, 1 + sequence_id, (5,) * length, computed, 0, (0,), PARAMS, (draw,))


def _with(inner: _Recorder):
    return dataclasses.replace(pool(), executor=inner)


def test_the_batch_is_a_rectangle_of_the_longest_row() -> None:
    """64 tokens: three rows of 4 + 16 fit; with a prompt of 12 among them, two rows of 28."""
    limit = constant_limit(16)
    short = replay(simple_req_manager(pool(), limit), [request(i, 4, 4) for i in range(6)])
    assert max(i.batch_size for i in short.iterations) == 3
    mixed = [request(0, 12, 16), *(request(i, 4, 4) for i in range(1, 6))]
    outcome = replay(simple_req_manager(pool(), limit), mixed)
    first = [i.batch_size for i in outcome.iterations[:4]]
    assert max(first) == 2


def test_who_joins_late_joins_at_the_width_of_the_batch() -> None:
    """64 tokens: beside a row of 4 + 12 that has become 15 long, one that draws 16 makes 2 x (15 + 16), more 3 x."""
    groups = [SequenceGroup(Request(str(i), (5,) * 4, SamplingParams(max_tokens=16), 0.0), i) for i in range(3)]
    assert rectangle_tokens(groups) == 3 * 20
    groups[0].sequences[0].token_ids.extend([7] * 11)
    assert rectangle_tokens(groups[:2]) == 2 * (15 + 16)
    assert rectangle_tokens(groups) == 3 * (15 + 16)


def test_prompts_have_an_iteration_of_their_own_and_are_padded_to_the_longest() -> None:
    inner = _Recorder()
    padded = PaddedBatch(_with(inner))
    result = padded.launch(IterationPlan((sequence(0, 12), sequence(2, 1, 3), sequence(1, 8)))).wait()
    assert len(result.token_ids) == 3, "the padding draws nothing"
    prompts, decodes = inner.plans
    assert [item.sequence_id for item in prompts.scheduled[:2]] == [0, 1]
    assert [len(item.token_ids) for item in prompts.scheduled] == [12, 8, 4]
    assert {block for item in prompts.scheduled[2:] for block in item.block_ids} == {16}, "spare blocks only"
    assert [item.sequence_id for item in decodes.scheduled] == [2]
    padded.launch(IterationPlan((sequence(3, 1),))).wait()
    assert prompts.scheduled[2].row in inner.plans[2].released


def test_padding_beyond_the_executors_tokens_takes_plans_of_its_own() -> None:
    inner = _Recorder()
    PaddedBatch(_with(inner)).launch(IterationPlan((sequence(0, 24), *(sequence(i, 2) for i in range(1, 5))))).wait()
    assert [plan.num_scheduled_tokens for plan in inner.plans] == [32, 22, 22, 22, 22, 0]


def test_decodes_read_the_padding_of_the_shorter_rows() -> None:
    """Rows of 60 and, twice, of 28: 64 columns of padding, which is one row of the 64 spare tokens."""
    inner = _Recorder()
    padded = PaddedBatch(_with(inner))
    decodes = IterationPlan((sequence(0, 1, 59), sequence(1, 1, 27), sequence(2, 1, 27)))
    for _ in range(2):
        assert len(padded.launch(decodes).wait().token_ids) == 3
    first, second = (plan.scheduled[3] for plan in inner.plans)
    assert (first.num_computed_tokens, len(first.block_ids), first.block_ids[-1]) == (63, 16, 16)
    assert second == first._replace(block_ids=())
    padded.launch(IterationPlan((), released=(0,))).wait()
    assert set(inner.plans[2].released) == {0, first.row}


def test_a_draw_goes_to_the_sequence_that_it_was_made_for() -> None:
    class _ById(_Recorder):
        def launch(self, plan):
            super().launch(plan)
            return _Drawn(tuple(100 + sample.sequence_id for item in plan.scheduled for sample in item.samples))

    plan = IterationPlan((sequence(0, 1, 59), sequence(1, 3), sequence(2, 1, 20), sequence(3, 5)))
    assert PaddedBatch(_with(_ById())).launch(plan).wait().token_ids == (100, 101, 102, 103)


@dataclasses.dataclass
class _Drawn:
    token_ids: tuple[int, ...]

    def is_done(self) -> bool:
        return True

    def wait(self) -> IterationResult:
        return IterationResult(self.token_ids)
