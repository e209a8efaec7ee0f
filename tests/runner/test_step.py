from __future__ import annotations

from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.runner.sequence_rows import SequenceRows
from service.runner.step import Step
from tests.structured.masks import FixedMasks


def step(*scheduled, masks=None):
    return Step(IterationPlan(scheduled, masks=masks), None, SequenceRows(4, 8), 4)


def item(row, targets=(), num_pooled=0, **sampling):
    params = SamplingParams(**{"max_tokens": 9, **sampling})
    draws = (Sample(row, 0),) if params.max_tokens else ()
    return ScheduledSequence(row, row, (5, 6), 0, 0, (1,), params, draws, Past((), 2), targets, num_pooled=num_pooled)


def test_a_step_is_plain_if_no_draw_asks_for_more_and_none_is_masked():
    assert step(item(1), item(2, top_k=3)).is_plain
    assert not step(item(1), item(2, min_p=0.1)).is_plain
    assert not step(item(1), masks=FixedMasks([0], [[5]], 40)).is_plain


def test_a_prompts_logprobs_are_targets():
    assert not step(item(1, num_prompt_logprobs=1)).reads_prompts
    assert step(item(1), item(2, (6,), num_prompt_logprobs=1)).reads_prompts


def test_what_is_pooled_is_read_from_the_prompt():
    embedding = {"max_tokens": 0, "pooling": "last"}
    assert not step(item(1), item(2, **embedding)).reads_prompts
    assert step(item(1), item(2, num_pooled=1, **embedding)).reads_prompts
    assert not step(item(1), item(2, num_pooled=1, **embedding)).is_plain


def test_what_a_plan_was_turned_into_is_kept():
    one = step(item(1))
    assert one.columns is one.columns
    assert one.batch is one.batch
    assert one.batch.tokens["token_ids"].tolist() == [5, 6]
