from __future__ import annotations

from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.prediction.workload import Workload, num_attended_pairs


def share(sequence_id: int, start: int, count: int) -> ScheduledSequence:
    return ScheduledSequence(sequence_id, 1 + sequence_id, (0,) * count, start, 0, (), SamplingParams(max_tokens=1), ())


def test_a_plans_workload_is_that_of_its_decodes_beside_its_chunks():
    plan = IterationPlan((share(0, 9, 1), share(1, 19, 1), share(2, 30, 7), share(3, 0, 4)))
    work = Workload.of(plan)
    assert work == Workload.of_decodes(2, 30).with_chunk(30, 7).with_chunk(0, 4)
    assert work.decodes() == Workload.of(IterationPlan(plan.scheduled[:2]))
    assert work.longest_context == 37


def test_each_token_attends_to_those_before_it_and_itself():
    for start in range(4):
        for count in range(5):
            assert num_attended_pairs(start, count) == sum(start + i + 1 for i in range(count))
