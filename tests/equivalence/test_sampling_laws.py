"""The sampling parameters through the whole engine, exactly, in fp32 on the CPU.

Greedy choices and all log probabilities are checked against transformers and a plain Python version of the rules.
Random draws are checked against themselves: in other batches, after preemption, with another block size.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from service.config import CacheConfig, ModelSource
from service.core.iteration import IterationPlan
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.kvcache.prefix_cache import NoPrefixCache
from service.runner.load import LoadedModel, load_executor
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap
from tests.engine.harness import Harness
from tests.equivalence.hf_model import random_prompts, save_random_model

VOCAB = 400
MAX_TOKENS = 8
EOS = 2
ASKS: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8, "num_logprobs": 3},
    {"repetition_penalty": 1.4, "num_logprobs": 0},
    {"frequency_penalty": -1.0, "presence_penalty": 0.5, "repetition_penalty": 0.8},
    {"logit_bias": ((7, 4.0), (8, -100.0), (9, 3.5)), "num_logprobs": 20},
    {"allowed_token_ids": tuple(range(30, 60))},
    {"allowed_token_ids": (5, 6, 7), "bad_words": ((5, 6), (6, 7, 6), (7,))},
    {"min_tokens": 6, "stop_token_ids": frozenset(range(0, VOCAB, 2))},
    {"num_prompt_logprobs": 4, "num_logprobs": 1},
    {"num_prompt_logprobs": 0, "repetition_penalty": 1.2},
    {"min_p": 0.2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model("llama", tmp_path_factory.mktemp("llama"))


def load(folder: Path, block_size: int = 16) -> LoadedModel:
    source = ModelSource(str(folder), None, None, None, "auto", "float32", "cpu", None, 0)
    return load_executor(source, folder, CacheConfig(block_size, 0.5, 16 << 20, 16 << 20), 16, 128)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load(folder)


def harness_of(loaded: LoadedModel, block_size: int = 16, **how: Any) -> Harness:
    # Another engine's sequences of the same ids are forgotten.
    loaded.runner.launch(IterationPlan((), released=tuple(range(500)))).wait()
    return Harness(
        **{
            "num_blocks": loaded.num_blocks,
            "block_size": block_size,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 128,
            "executor": loaded.runner,
            **how,
        }
    )


def requests_of(harness: Harness, temperature: float, n: int = 1) -> list[Request]:
    prompts = random_prompts(2 * len(ASKS), VOCAB, seed=3, longest=90)
    return [
        harness.request(
            prompt,
            MAX_TOKENS,
            n,
            seed=index * 100,
            temperature=temperature,
            **{"stops": frozenset({EOS}), **_as_harness_takes(ASKS[index % len(ASKS)])},
        )
        for index, prompt in enumerate(prompts)
    ]


def _as_harness_takes(ask: dict[str, Any]) -> dict[str, Any]:
    return {("stops" if name == "stop_token_ids" else name): value for name, value in ask.items()}


def play(harness: Harness, requests: list[Request]) -> dict[tuple[str, int], list[int]]:
    for request in requests:
        assert harness.add(request)
    harness.run()
    return dict(harness.tokens)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


def next_token(logits: list[float], prompt: tuple[int, ...], output: list[int], sampling: SamplingParams) -> int:
    """Applies the rules one after another, in plain Python; greedy."""
    generated = Counter(output)
    for token in set(prompt) | set(output):
        factor = sampling.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in generated.items():
        logits[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if sampling.allowed_token_ids is not None:
        logits[:] = [x if t in sampling.allowed_token_ids else -math.inf for t, x in enumerate(logits)]
    if len(output) < sampling.min_tokens:
        for token in sampling.stop_token_ids:
            logits[token] = -math.inf
    for *start, last in sampling.bad_words:
        if output[len(output) - len(start) :] == start:
            logits[last] = -math.inf
    return max(range(len(logits)), key=logits.__getitem__)


def test_greedy_choices_follow_the_rules_and_logprobs_are_the_models(loaded: LoadedModel, oracle: Any) -> None:
    harness = harness_of(loaded)
    requests = requests_of(harness, temperature=0.0)
    made = play(harness, requests)
    for request in requests:
        prompt, sampling, output = request.prompt_token_ids, request.sampling, made[request.request_id, 0]
        logits = logits_of(oracle, [*prompt, *output])
        for index, token in enumerate(output):
            row = logits[len(prompt) - 1 + index].tolist()
            assert token == next_token(row, prompt, output[:index], sampling), (sampling, index)
        reference = logits.log_softmax(-1)
        got = harness.logprobs[request.request_id, 0]
        assert bool(got) == (sampling.num_logprobs is not None)
        for entry, token, row in zip(got, output, reference[len(prompt) - 1 :], strict=False):
            check_entry(entry, token, row, sampling.num_logprobs)
        scored = harness.prompt_logprobs.get(request.request_id)
        assert (scored is None) == (sampling.num_prompt_logprobs is None)
        if scored is not None:
            assert len(scored) == len(prompt) - 1
            for entry, token, row in zip(scored, prompt[1:], reference, strict=False):
                check_entry(entry, token, row, sampling.num_prompt_logprobs)
                assert entry.rank == int((row > row[token]).sum()) + 1


def check_entry(entry: Any, token: int, row: torch.Tensor, num_top: int | None) -> None:
    assert entry.chosen == pytest.approx(float(row[token]), abs=1e-3)
    best = row.topk(num_top or 0)
    assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-3)
    assert [float(row[token_id]) for token_id, _ in entry.top] == pytest.approx(best.values.tolist(), abs=1e-3)


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_is_the_same_alone_batched_preempted_and_on_other_blocks(
    folder: Path, loaded: LoadedModel, n: int
) -> None:
    whole = harness_of(loaded)
    together = play(whole, requests_of(whole, 0.9, n))

    alone = harness_of(loaded)
    for request in requests_of(alone, 0.9, n):
        play(alone, [request])
    assert alone.tokens == together

    ahead = harness_of(loaded, overlap=True)
    assert play(ahead, requests_of(ahead, 0.9, n)) == together
    assert_same_logprobs(ahead, whole)

    for preemption in (AlwaysRecompute(), AlwaysSwap()):
        tight = harness_of(loaded, num_blocks=24, num_host_blocks=24, preemption=preemption)
        assert play(tight, requests_of(tight, 0.9, n)) == together
        assert sum(s.num_dropped + s.num_swapped for s in tight.sink.iterations) > 0
        assert_same_logprobs(tight, whole)

    for block_size in (1, 5):
        other = harness_of(load(folder, block_size), block_size, prefix_cache=NoPrefixCache())
        assert play(other, requests_of(other, 0.9, n)) == together
        assert_same_logprobs(other, whole)


def assert_same_logprobs(harness: Harness, want: Harness) -> None:
    """Values agree up to rounding: a matrix with another number of rows may be summed in another order."""
    assert harness.logprobs.keys() == want.logprobs.keys()
    for key, entries in want.logprobs.items():
        assert [e.chosen for e in harness.logprobs[key]] == pytest.approx([e.chosen for e in entries], abs=1e-3)
    assert harness.prompt_logprobs.keys() == want.prompt_logprobs.keys()
    for name, scored in want.prompt_logprobs.items():
        got = harness.prompt_logprobs[name]
        assert [e.chosen for e in got] == pytest.approx([e.chosen for e in scored], abs=1e-3)


def test_choices_differ_and_choice_i_is_the_request_with_seed_plus_i(loaded: LoadedModel) -> None:
    harness = harness_of(loaded)
    requests = requests_of(harness, 0.9, 3)
    made = play(harness, requests)
    single = harness_of(loaded)
    for request in random.Random(0).sample(requests, 6):
        for choice in range(3):
            sampling = replace(request.sampling, n=1, seed=request.sampling.seed + choice)
            alone = replace(request, request_id=f"{request.request_id}-{choice}", sampling=sampling)
            assert play(single, [alone])[alone.request_id, 0] == made[request.request_id, choice]
    free = requests[0].request_id
    assert len({tuple(made[free, choice]) for choice in range(3)}) == 3


def test_a_prompt_can_be_scored_without_drawing(loaded: LoadedModel, oracle: Any) -> None:
    harness = harness_of(loaded, num_blocks=12)
    prompts = random_prompts(5, VOCAB, seed=9, longest=100)
    requests = [harness.request(prompt, 0, n=1 + i % 2, num_prompt_logprobs=1) for i, prompt in enumerate(prompts)]
    assert play(harness, requests) == {}
    for request in requests:
        reference = logits_of(oracle, list(request.prompt_token_ids)).log_softmax(-1)
        scored = harness.prompt_logprobs[request.request_id]
        assert len(scored) == request.num_prompt_tokens - 1
        for entry, token, row in zip(scored, request.prompt_token_ids[1:], reference, strict=False):
            check_entry(entry, token, row, 1)
        assert harness.finals[request.request_id].stats.num_output_tokens == 0


def test_a_scored_prompt_takes_nothing_from_the_prefix_cache(loaded: LoadedModel) -> None:
    """Otherwise the logprobs of the cached part would be missing. Its own blocks are cached for others."""
    harness = harness_of(loaded)
    prompt = tuple(range(3, 103))
    play(harness, [harness.request(prompt, 2, temperature=0.0)])
    scored = harness.request(prompt, 2, temperature=0.0, num_prompt_logprobs=0)
    play(harness, [scored])
    assert len(harness.prompt_logprobs[scored.request_id]) == 99
    assert harness.finals[scored.request_id].stats.num_cached_tokens == 0
    plain = harness.request(prompt, 2, temperature=0.0)
    play(harness, [plain])
    assert harness.finals[plain.request_id].stats.num_cached_tokens == 96


def test_scores_that_are_no_numbers_end_the_request_with_an_error(folder: Path) -> None:
    broken = load(folder)
    harness = harness_of(broken)
    broken.runner.replays._model.norm.weight.data.fill_(float("nan"))
    request = harness.request(tuple(range(3, 40)), 0, num_prompt_logprobs=0)
    play(harness, [request])
    assert harness.finals[request.request_id].error is not None
