"""Greedy outputs of the whole engine over the real model equal Hugging Face's `generate`, token for token in fp32.

Alone, all at once, arriving at random while others run, and with a cache so small that requests are preempted.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from service.config import CacheConfig, ModelSource
from service.kvcache.prefix_cache import NoPrefixCache
from service.runner.load import LoadedModel, load_executor
from service.settings.quickstart import QUICKSTART_MODEL
from tests.engine.harness import Harness
from tests.equivalence.hf_model import CONFIGS, generate_alone, random_prompts, save_random_model
from tests.examples import examples
from tests.models.checkpoints import generate, logits_of, oracle

NUM_PROMPTS = {"llama": examples(32)}
FEWER_PROMPTS = 24
NUM_ALONE = examples(8)
MAX_TOKENS = 16
MAX_NUM_SEQS = 64
BUDGET = 256
BLOCK_SIZE = 16
CACHE_BYTES = 64 * 2**20
LONGEST = 300

Prompts = list[tuple[int, ...]]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def load(folder: Path, device: str) -> LoadedModel:
    source = ModelSource(str(folder), None, None, None, "auto", "float32", device, None, 0)
    cache = CacheConfig(BLOCK_SIZE, 0.5, CACHE_BYTES)
    return load_executor(source, folder, cache, MAX_NUM_SEQS, BUDGET)


class Case:
    """One model: its folder, its prompts, and the expected answers."""

    def __init__(self, family: str, folder: Path, vocab_size: int) -> None:
        self.folder = folder
        self.prompts = random_prompts(NUM_PROMPTS.get(family, FEWER_PROMPTS), vocab_size)
        self.expected = generate_alone(folder, self.prompts, MAX_TOKENS)


@pytest.fixture(scope="module", params=[*CONFIGS, "quickstart"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    if request.param == "quickstart":
        return Case(request.param, QUICKSTART_MODEL, 2000)
    return Case(request.param, save_random_model(request.param, tmp_path_factory.mktemp(request.param)), 400)


@pytest.fixture(params=DEVICES)
def loaded(request: pytest.FixtureRequest, case: Case) -> LoadedModel:
    return load(case.folder, request.param)


def make_harness(loaded: LoadedModel, num_blocks: int | None = None, overlap: bool = False) -> Harness:
    """With a sliding window, blocks are freed and reused by other requests."""
    return Harness(
        num_blocks or loaded.num_blocks,
        BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=BUDGET,
        executor=loaded.runner,
        overlap=overlap,
        window=None if None in (windows := loaded.model_config.sliding_windows) else windows[0],
    )


def add(harness: Harness, prompt: tuple[int, ...], n: int = 1, temperature: float = 0.0, seed: int = 0) -> str:
    request = harness.request(prompt, MAX_TOKENS, n, seed, temperature=temperature)
    harness.clock.advance(0.001)
    assert harness.add(request)
    return request.request_id


def outputs(harness: Harness, request_ids: list[str]) -> list[list[int]]:
    return [harness.tokens[request_id, 0] for request_id in request_ids]


@pytest.mark.some(3)
def test_the_oracle_says_the_same_of_each_prompt_alone(case: Case):
    """The oracle computes many prompts at once; the shortest and the longest have the most and the least padding."""
    model, some = oracle(case.folder), case.prompts[:3]
    assert [generate(model, list(prompt), MAX_TOKENS) for prompt in some] == case.expected[:3]


def test_alone(case: Case, loaded: LoadedModel):
    harness = make_harness(loaded)
    request_ids = []
    for prompt in case.prompts[:NUM_ALONE]:
        request_ids.append(add(harness, prompt))
        harness.run()
    assert outputs(harness, request_ids) == case.expected[:NUM_ALONE]


def test_all_at_once(case: Case, loaded: LoadedModel):
    harness = make_harness(loaded)
    request_ids = [add(harness, prompt) for prompt in case.prompts]
    harness.run()
    assert outputs(harness, request_ids) == case.expected


@pytest.mark.each_once
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_arriving_at_random_while_others_run(case: Case, loaded: LoadedModel, overlap: bool):
    harness = make_harness(loaded, overlap=overlap)
    chance = random.Random(1)
    count = FEWER_PROMPTS if overlap else len(case.prompts)
    request_ids = []
    for prompt in case.prompts[:count]:
        request_ids.append(add(harness, prompt))
        for _ in range(chance.randint(0, 3)):
            harness.step()
    harness.run()
    assert outputs(harness, request_ids) == case.expected[:count]


@pytest.mark.each_once
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_preempted_and_recomputed(case: Case, loaded: LoadedModel, overlap: bool):
    harness = make_harness(loaded, num_blocks=-(-(LONGEST + MAX_TOKENS) // BLOCK_SIZE) + 2, overlap=overlap)
    expected = dict(zip(case.prompts[:FEWER_PROMPTS], case.expected, strict=False))
    prompts = sorted(expected, key=len)
    request_ids = [add(harness, prompt) for prompt in prompts]
    harness.run()
    assert outputs(harness, request_ids) == [expected[prompt] for prompt in prompts]
    assert sum(stats.num_preemptions for stats, _, _ in harness.sink.requests) > 0


@pytest.mark.parametrize("device", DEVICES)
def test_under_a_window_a_sequence_may_be_longer_than_the_cache(tmp_path: Path, device: str):
    folder = save_random_model("mistral", tmp_path)
    source = ModelSource(str(folder), None, None, None, "auto", "float32", device, None, 0)
    loaded = load_executor(source, folder, CacheConfig(BLOCK_SIZE, 0.5, 128 * 2**10), 4, 64)
    prompts = [prompt for prompt in random_prompts(60, 400) if len(prompt) > 270][:3]
    harness = Harness(
        loaded.num_blocks, BLOCK_SIZE, 4, 64, executor=loaded.runner, window=37, prefix_cache=NoPrefixCache()
    )
    assert prompts and loaded.num_blocks * BLOCK_SIZE < min(map(len, prompts))
    request_ids = [add(harness, prompt) for prompt in prompts]
    harness.run()
    assert outputs(harness, request_ids) == generate_alone(folder, prompts, MAX_TOKENS)


@pytest.mark.some(3)
def test_prompts_that_continue_cached_ones(case: Case, loaded: LoadedModel):
    """Also when a sliding window has moved past the shared blocks."""
    harness = make_harness(loaded)
    prompts, expected, half = case.prompts[:12], case.expected[:12], MAX_TOKENS // 2
    for prompt in prompts:
        add(harness, prompt)
    harness.run()
    longer = [(*prompt, *made[:half]) for prompt, made in zip(prompts, expected, strict=True)]
    request_ids = [add(harness, prompt) for prompt in longer]
    harness.run()
    assert [made[:half] for made in outputs(harness, request_ids)] == [made[half:] for made in expected]
    assert sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests) > sum(map(len, prompts)) // 2


@pytest.mark.some(3)
def test_draws_depend_on_the_seed_and_on_nothing_else(case: Case, loaded: LoadedModel):
    prompts = case.prompts[: min(8, examples(4))]
    alone = []
    for prompt in prompts:
        for choice in range(3):
            harness = make_harness(loaded)
            add(harness, prompt, temperature=1.0, seed=100 + choice)
            harness.run()
            alone.append(harness.tokens["request-0", 0])
    harness = make_harness(loaded, overlap=True)
    request_ids = [add(harness, prompt, n=3, temperature=1.0, seed=100) for prompt in prompts]
    harness.run()
    together = [harness.tokens[request_id, choice] for request_id in request_ids for choice in range(3)]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) > len(prompts), "choices differ"


@pytest.mark.some(3)
def test_bf16_differs_only_between_near_ties(case: Case):
    """At the first difference, each side's token is among the other's top 5."""
    source = ModelSource(str(case.folder), None, None, None, "auto", "bfloat16", "cpu", None, 0)
    loaded = load_executor(source, case.folder, CacheConfig(BLOCK_SIZE, 0.5, CACHE_BYTES), MAX_NUM_SEQS, BUDGET)
    harness = make_harness(loaded)
    request_ids = [add(harness, prompt) for prompt in case.prompts]
    harness.run()
    exact, rounded = oracle(case.folder), oracle(case.folder, torch.bfloat16)
    for prompt, ours, theirs in zip(case.prompts, outputs(harness, request_ids), case.expected, strict=True):
        first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
        if first is not None:
            context = [*prompt, *theirs[:first]]
            assert ours[first] in top_5(exact, context)
            assert theirs[first] in top_5(rounded, context)


def top_5(model: PreTrainedModel, context: list[int]) -> list[int]:
    return logits_of(model, context)[-1].float().topk(5).indices.tolist()
