"""Beam search over the real model equals Hugging Face's `generate`, token for token in fp32: alone; mixed in one batch
with sampling and shared prefixes; preempted, swapped, overlapped; with blocks of one token."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from service.config import CacheConfig, ModelSource
from service.core.request import FinishReason
from service.runner.load import LoadedModel, load_executor
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap
from tests.engine.harness import Harness
from tests.equivalence.hf_model import generate_alone, random_prompts, save_random_model

MAX_TOKENS = 12
WIDTHS = (2, 4, 6)
Rules = tuple[float, bool | Literal["never"]]
RULES: tuple[Rules, ...] = ((1.0, False), (0.0, True), (2.0, "never"), (-1.0, False))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Case:
    """A model, prompts with a common beginning, tokens that end a beam, and `generate`'s answers to what is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shared = random_prompts(2, 400, longest=40)[1]
        self.prompts = [(*shared, 5), (*shared, 6, 7), *random_prompts(3, 400, seed=1, longest=30)]
        greedy = generate_alone(folder, self.prompts, MAX_TOKENS)
        self.stops = frozenset(tokens[MAX_TOKENS // 2] for tokens in greedy)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.expected = cache(self._generate)

    def _generate(self, prompt: tuple[int, ...], width: int, rules: Rules) -> list[list[int]]:
        """All beams that `generate` returns, best first, each up to the token that ends it."""
        made = self._model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=MAX_TOKENS,
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            length_penalty=rules[0],
            early_stopping=rules[1],
            eos_token_id=sorted(self.stops),
            pad_token_id=0,
        )
        beams = []
        for tokens in made[:, len(prompt) :].tolist():
            end = next((i + 1 for i, token in enumerate(tokens) if token in self.stops), len(tokens))
            beams.append(tokens[:end])
        return beams


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(save_random_model("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def load(case: Case, device: str, block_size: int = 4) -> LoadedModel:
    source = ModelSource(str(case.folder), None, None, None, "auto", "float32", device, None, 0)
    return load_executor(source, case.folder, CacheConfig(block_size, 0.5, 16 << 20, 16 << 20), 32, 64)


def add_beams(harness: Harness, case: Case, prompt: tuple[int, ...], width: int, rules: Rules) -> str:
    request = harness.beam_request(prompt, MAX_TOKENS, width, width, case.stops, rules[0], rules[1])
    harness.clock.advance(0.001)
    assert harness.add(request)
    return request.request_id


def beams_of(harness: Harness, request_id: str) -> list[list[int]]:
    return [harness.tokens[request_id, i] for i in range(harness.requests[request_id].sampling.n)]


def mixed(case: Case) -> list[tuple[tuple[int, ...], tuple[int, Rules]]]:
    """Each prompt with its width and rules in a batch of all."""
    return [(prompt, (WIDTHS[index % 3], RULES[index % 4])) for index, prompt in enumerate(case.prompts)]


@pytest.mark.each_once
@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_alone(case: Case, device: str, width: int, rules: Rules):
    loaded = load(case, device)
    for prompt in case.prompts:
        harness = Harness(loaded.num_blocks, 4, 32, 64, executor=loaded.runner)
        name = add_beams(harness, case, prompt, width, rules)
        harness.run()
        assert beams_of(harness, name) == case.expected(prompt, width, rules)


def test_some_beams_end_early(case: Case):
    lengths = {len(beam) for prompt, way in mixed(case) for beam in case.expected(prompt, *way)}
    assert len(lengths) > 3


@pytest.mark.pairwise
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(4, 60), (1, 220)])
@pytest.mark.parametrize("preemption", [AlwaysRecompute, AlwaysSwap])
def test_mixed_and_preempted(
    case: Case,
    device: str,
    preemption: type[AlwaysRecompute] | type[AlwaysSwap],
    block_size: int,
    num_blocks: int,
    overlap: bool,
):
    loaded = load(case, device, block_size)

    def run(num_blocks: int, num_host_blocks: int) -> tuple[Harness, dict[str, list[list[int]]], list[str]]:
        harness = Harness(
            num_blocks,
            block_size,
            32,
            64,
            executor=loaded.runner,
            preemption=preemption(),
            num_host_blocks=num_host_blocks,
            overlap=overlap,
        )
        expected, draws = {}, []
        for index, (prompt, way) in enumerate(mixed(case)):
            expected[add_beams(harness, case, prompt, *way)] = case.expected(prompt, *way)
            request = harness.request(prompt, 20, n=1 + index % 3, seed=index)
            draws.append(request.request_id)
            assert harness.add(request)
        harness.run()
        assert harness.blocks.pool.num_used == 0
        return harness, expected, draws

    tight, expected, draws = run(num_blocks, min(num_blocks, loaded.num_host_blocks))
    assert sum(stats.num_preemptions for stats, _, _ in tight.sink.requests) > 0
    assert {name: beams_of(tight, name) for name in expected} == expected
    assert FinishReason.STOP in tight.reasons.values()
    roomy, expected, draws = run(loaded.num_blocks, 0)
    assert {name: beams_of(roomy, name) for name in expected} == expected
    assert [beams_of(tight, name) for name in draws] == [beams_of(roomy, name) for name in draws]
