"""Models in which some layers have a sliding window and others do not: tokens equal transformers' `generate` while
blocks behind the window are reused by other requests; and what the windowed layers hold is bounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.config import CacheConfig, ModelSource
from service.runner.load import LoadedModel, load_executor
from service.scheduler.preemption import AlwaysRecompute, AlwaysSwap, Preemption
from tests.engine.harness import Harness
from tests.equivalence.hf_model import generate_alone, random_prompts
from tests.models.checkpoints import gemma2, gemma3, gpt_oss

WINDOW = 21
BLOCK_SIZE = 4
MAX_TOKENS = 12
MAX_NUM_SEQS, BUDGET = 16, 40
"""A prompt of several windows is computed in several chunks."""

FIVE_TO_ONE = ["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"] * 2
MAKERS: dict[str, Callable[[Path], Path]] = {
    "gemma 3": lambda folder: gemma3(folder, num_hidden_layers=5, layer_types=FIVE_TO_ONE),
    "gemma 2": gemma2,
    "gpt-oss": gpt_oss,
    "gemma 2 by transformers' modules": gemma2,
}
GROUPS = {"gemma 3": (1, 4)}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Case:
    def __init__(self, family: str, folder: Path) -> None:
        self.family = family
        self.folder = MAKERS[family](folder)
        self.prompts = [*random_prompts(3, 301, longest=110), *random_prompts(2, 301, seed=1, longest=60)]
        self.expected = generate_alone(self.folder, self.prompts, MAX_TOKENS)
        long = [prompt[:44] for prompt in random_prompts(9, 301, seed=2, longest=90) if len(prompt) > 44][:2]
        self.growing = [prompt[:6] for prompt in random_prompts(12, 301, seed=3) if len(prompt) > 5][:5] + long
        self.expected_of_growing = generate_alone(self.folder, self.growing, MAX_TOKENS)


@pytest.fixture(scope="module", params=MAKERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=DEVICES)
def loaded(request: pytest.FixtureRequest, case: Case) -> LoadedModel:
    how = "transformers" if "transformers" in case.family else "native"
    source = ModelSource(str(case.folder), None, None, None, "auto", "float32", request.param, None, 0, how)
    cache = CacheConfig(BLOCK_SIZE, 0.5, 2 << 20, 2 << 20, by_layer_groups=True)
    return load_executor(source, case.folder, cache, MAX_NUM_SEQS, BUDGET)


def harness_of(
    loaded: LoadedModel,
    num_blocks: int | None = None,
    preemption: Preemption | None = None,
    num_host_blocks: int = 0,
    *,
    overlap: bool = False,
) -> Harness:
    return Harness(
        num_blocks or loaded.num_blocks,
        BLOCK_SIZE,
        MAX_NUM_SEQS,
        BUDGET,
        executor=loaded.runner,
        preemption=preemption,
        num_host_blocks=num_host_blocks,
        overlap=overlap,
        window=WINDOW,
        groups=loaded.layer_groups.tables,
    )


def add(harness: Harness, prompt: tuple[int, ...], n: int = 1, max_tokens: int = MAX_TOKENS) -> str:
    request = harness.request(prompt, max_tokens, n, temperature=0.0)
    harness.clock.advance(0.001)
    assert harness.add(request)
    return request.request_id


def outputs(harness: Harness, request_ids: list[str], choice: int = 0) -> list[list[int]]:
    return [harness.tokens[request_id, choice] for request_id in request_ids]


def test_layers_that_see_alike_share_blocks(case: Case, loaded: LoadedModel):
    assert loaded.layer_groups.tables == GROUPS.get(case.family, (1, 1))
    assert loaded.layer_groups.layers_each == 1


def test_alone_and_what_windows_hold_does_not_grow(case: Case, loaded: LoadedModel):
    num_full, num_windowed = loaded.layer_groups.tables
    most_units = -(-(WINDOW + BUDGET) // BLOCK_SIZE) + 1
    for prompt, expected in zip(case.prompts, case.expected, strict=True):
        harness = harness_of(loaded)
        request_id = add(harness, prompt)
        used = 0
        while harness.engine.has_work:
            harness.step()
            used = max(used, harness.blocks.pool.num_used)
        assert harness.tokens[request_id, 0] == expected
        num_units = -(-(len(prompt) + MAX_TOKENS - 1) // BLOCK_SIZE)
        assert used <= num_units * num_full + min(num_units, most_units) * num_windowed
        if num_units > most_units:
            assert used < num_units * (num_full + num_windowed), "less than without groups"
        harness.check_nothing_left()


@pytest.mark.each_once
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
def test_together_and_from_cached_beginnings(case: Case, loaded: LoadedModel, overlap: bool):
    harness, half = harness_of(loaded, overlap=overlap), MAX_TOKENS // 2
    request_ids = [add(harness, prompt) for prompt in case.prompts]
    harness.run()
    assert outputs(harness, request_ids) == case.expected
    longer = [(*prompt, *made[:half]) for prompt, made in zip(case.prompts, case.expected, strict=True)]
    request_ids = [add(harness, prompt, max_tokens=half) for prompt in longer]
    harness.run()
    assert outputs(harness, request_ids) == [made[half:] for made in case.expected]
    hits = sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests)
    assert hits > sum(map(len, case.prompts)) // 2


@pytest.mark.each_once
@pytest.mark.parametrize("preemption", [AlwaysRecompute(), AlwaysSwap()], ids=["recomputed", "swapped"])
def test_preempted(case: Case, loaded: LoadedModel, preemption: Preemption):
    """Short requests grow, and a long one, which has freed blocks behind its windows, is preempted for them."""
    num_blocks = 20 * sum(loaded.layer_groups.tables)
    harness = harness_of(loaded, num_blocks, preemption, loaded.num_host_blocks, overlap=True)
    request_ids = [add(harness, prompt) for prompt in case.growing]
    harness.run()
    assert outputs(harness, request_ids) == case.expected_of_growing
    recoveries = [each.recovery for stats, _, _ in harness.sink.requests for each in stats.preemptions]
    assert recoveries, "memory was short"
    assert ("swap" in recoveries) == isinstance(preemption, AlwaysSwap)


def test_choices_of_one_prompt_share_it_until_they_part(case: Case, loaded: LoadedModel):
    harness = harness_of(loaded, overlap=True)
    request_ids = [add(harness, prompt, n=3) for prompt in case.prompts[:2]]
    harness.run()
    for choice in range(3):
        assert outputs(harness, request_ids, choice) == case.expected[:2]


def test_beams(case: Case, loaded: LoadedModel):
    """A beam of width 1 is greedy. Wider beams are the same whether blocks behind windows are freed or not."""
    prompt, expected = case.prompts[1], case.expected[1]
    harness = harness_of(loaded)
    (one, four) = [harness.beam_request(prompt, MAX_TOKENS, width=width, n=width) for width in (1, 4)]
    assert harness.add(one)
    assert harness.add(four)
    harness.run()
    assert harness.tokens[one.request_id, 0] == expected
    assert len({tuple(harness.tokens[four.request_id, choice]) for choice in range(4)}) == 4
