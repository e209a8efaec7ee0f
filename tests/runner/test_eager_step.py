from __future__ import annotations

import pytest
import torch

from kernels.greedy_tokens import greedy_tokens
from kernels.sample_tokens import sample_tokens
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.runner import eager_step
from service.runner.eager_step import with_grammar_masks
from service.sampling.sampling_extras import SamplingExtras, TokenBitmask
from tests.models.checkpoints import llama, random_prompts
from tests.runner.loading import load
from tests.structured.masks import FixedMasks

CPU = torch.device("cpu")


def test_without_masks_nothing_is_asked_for():
    assert with_grammar_masks(None, None, CPU) is None
    extras = SamplingExtras(num_top=2)
    assert with_grammar_masks(extras, None, CPU) is extras


def test_a_grammars_mask_joins_what_the_parameters_ask_for():
    other = TokenBitmask(torch.full((1, 2), -1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32))
    extras = with_grammar_masks(SamplingExtras(bitmasks=(other,), num_top=2), FixedMasks([-1, 0], [[33]], 40), CPU)
    assert extras is not None
    assert extras.num_top == 2
    assert extras.bitmasks[0] is other
    assert extras.bitmasks[1].bitmask.tolist() == [[0, 2]]
    assert extras.bitmasks[1].mask_rows.tolist() == [-1, 0]
    assert extras.bitmasks[1].mask_rows.dtype == torch.int32


PROMPTS = random_prompts(12, longest=30)
KINDS = [
    {"temperature": 0.0},
    {"top_p": 0.8, "top_k": 30},
    {"min_p": 0.05},
    {"logit_bias": ((3, 4.0), (9, -2.0))},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"num_logprobs": 3},
    {"num_logprobs": 2, "logprob_token_ids": (7, 300)},
    {"allowed_token_ids": tuple(range(40, 90))},
    {"logit_bias": ((5, 3.0),), "num_logprobs": 0, "temperature": 0.0},
]


def plan(kinds):
    """A prompt each, the third with five choices; the last one's draw is masked."""
    shares, num_draws = [], 0
    for i, prompt in enumerate(PROMPTS):
        params = SamplingParams(max_tokens=4, seed=i, **{"temperature": 0.9, **kinds[i % len(kinds)]})
        seeds = range(5) if i == 2 else (i,)
        samples = tuple(Sample(i, 100 * i + seed) for seed in seeds)
        num_draws += len(samples)
        shares.append(
            ScheduledSequence(i, i + 1, tuple(prompt), 0, 0, (2 * i, 2 * i + 1), params, samples, Past((), len(prompt)))
        )
    masks = FixedMasks([-1] * (num_draws - 1) + [0], [[7, 8, 11]], 301)
    return IterationPlan(tuple(shares), masks=masks if len(kinds) > 1 else None)


def outcome(runner, plan):
    result = runner.launch(plan).wait()
    runner.launch(IterationPlan((), released=tuple(range(1, len(PROMPTS) + 1)))).wait()
    return result.token_ids, result.logprobs


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    torch.manual_seed(0)
    return load(llama(tmp_path_factory.mktemp("model"))).runner


@pytest.mark.pairwise
@pytest.mark.parametrize("largest", [7, 3, 1])
@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS[1:2], KINDS], ids=["greedy", "plain", "all"])
@pytest.mark.parametrize("where", ["logits", "draw"])
def test_memory_that_runs_out_changes_no_draw(where, kinds, largest, runner, monkeypatch):
    want = outcome(runner, plan(kinds))
    compute_logits, drawn = runner.replays._model.compute_logits, []

    def limited(function, num_rows):
        def call(*arguments, **named):
            rows = num_rows(arguments)
            if rows > largest:
                raise torch.OutOfMemoryError("injected")
            drawn.append(rows)
            return function(*arguments, **named)

        return call

    if where == "logits":
        monkeypatch.setattr(runner.replays._model, "compute_logits", limited(compute_logits, lambda a: len(a[0])))
    else:
        # Behind the transforms: what they wrote must not be transformed again.
        monkeypatch.setattr("service.sampling.sampler.sample_tokens", limited(sample_tokens, rows_of_logits))
        monkeypatch.setattr("service.sampling.sampler.greedy_tokens", limited(greedy_tokens, rows_of_logits))
    token_ids, logprobs = outcome(runner, plan(kinds))
    assert token_ids == want[0]
    assert len(logprobs) == len(want[1])
    for got, expected in zip(logprobs, want[1], strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            assert got.chosen == pytest.approx(expected.chosen, abs=1e-5)
            assert [i for i, _ in got.top] == [i for i, _ in expected.top]
    assert drawn
    assert max(drawn) <= largest


def rows_of_logits(arguments):
    return len(arguments[0])


def test_one_draw_that_does_not_fit_is_a_fault(runner, monkeypatch):
    def compute_logits(hidden):
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(runner.replays._model, "compute_logits", compute_logits)
    with pytest.raises(torch.OutOfMemoryError):
        runner.launch(plan(KINDS[:1]))
    runner.launch(IterationPlan((), released=tuple(range(1, len(PROMPTS) + 1)))).wait()


@pytest.mark.gpu
def test_what_a_graph_computed_is_drawn_in_parts_too(tmp_path, monkeypatch):
    """The graph's logits stay as they came, though the draws' transforms write what they get."""
    loaded = load(llama(tmp_path), device="cuda")
    runner = loaded.runner

    def decode():
        shares = [
            ScheduledSequence(
                i,
                i + 1,
                (5 + i,),
                0,
                0,
                (i,),
                SamplingParams(max_tokens=4, **{"temperature": 0.9, **KINDS[i % len(KINDS)]}),
                (Sample(i, i),),
                Past((), 1),
            )
            for i in range(12)
        ]
        return outcome(runner, IterationPlan(tuple(shares)))[0]

    want, sizes, draw = decode(), [], eager_step.draw

    def limited(logits, *others):
        drawn = draw(logits, *others)
        if len(logits) > 2:
            raise torch.OutOfMemoryError("injected")
        sizes.append(len(logits))
        return drawn

    monkeypatch.setattr(eager_step, "draw", limited)
    assert decode() == want
    assert max(sizes) <= 2
