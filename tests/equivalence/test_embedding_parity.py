"""Embeddings from the whole engine over the real model equal transformers' hidden states in fp32: alone; all at once in
chunks; after a cached prefix; with a cache so small that requests wait for each other."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from service.config import CacheConfig, ModelSource
from service.core.embedding import EmbedderConfig, Pooling, Vector
from service.models.pooling_config import load_embedder_config
from service.runner.load import LoadedModel, load_executor
from tests.engine.harness import Harness
from tests.equivalence.hf_model import embed_alone, random_prompts, save_random_embedder

BLOCK_SIZE, BUDGET = 16, 40
LONGEST = 120
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CASES = [("qwen3", "lasttoken", "last"), ("mistral", "mean_tokens", "mean")]

Prompt = tuple[int, ...]


class Case:
    """An embedding model, prompts that share beginnings, and transformers' vectors for them."""

    def __init__(self, folder: Path, pooling: str, kind: str) -> None:
        self.folder = folder
        self.pooling = cast(Pooling, kind)
        prompts = random_prompts(12, 400, longest=LONGEST)
        shared = prompts[1][:70]
        self.prompts = [*prompts, *(shared + prompt[:30] for prompt in prompts[2:8])]
        self.expected = embed_alone(folder, self.prompts, pooling)


@pytest.fixture(scope="module", params=CASES, ids=["last", "mean"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, pooling, kind = request.param
    return Case(save_random_embedder(family, tmp_path_factory.mktemp(family) / "model", pooling), pooling, kind)


@pytest.fixture(params=DEVICES)
def loaded(request: pytest.FixtureRequest, case: Case) -> LoadedModel:
    source = ModelSource(str(case.folder), None, None, None, "auto", "float32", request.param, None, 0)
    return load_executor(source, case.folder, CacheConfig(BLOCK_SIZE, 0.5, 4 << 20), 8, BUDGET, enforce_eager=True)


def embedded(harness: Harness, case: Case, prompts: list[Prompt]) -> list[Vector]:
    asked = [harness.request(prompt, 0, pooling=case.pooling) for prompt in prompts]
    for request in asked:
        assert harness.add(request)
    harness.run()
    return [harness.pooled[request.request_id] for request in asked]


def assert_equal(got: list[Vector], expected: list[torch.Tensor]) -> None:
    np.testing.assert_allclose(np.stack(got), torch.stack(expected).numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("num_blocks", [None, 9])
def test_vectors_are_those_of_transformers_alone_and_all_at_once(
    case: Case, loaded: LoadedModel, num_blocks: int | None
):
    harness = Harness(
        num_blocks or loaded.num_blocks,
        BLOCK_SIZE,
        max_num_seqs=8,
        max_num_batched_tokens=BUDGET,
        executor=loaded.runner,
    )
    together = embedded(harness, case, case.prompts)
    assert_equal(together, case.expected)
    alone = [embedded(harness, case, [prompt])[0] for prompt in case.prompts]
    assert_equal(alone, case.expected)
    cached = [final.stats.num_cached_tokens for final in harness.finals.values()]
    assert any(cached) is (case.pooling == "last")


def test_the_folder_says_how_it_pools_and_needs_no_output_head(case: Case, loaded: LoadedModel):
    assert load_embedder_config(case.folder) == EmbedderConfig(case.pooling, True, 64)
    assert loaded.model_config.architecture.endswith("ForCausalLM")
    assert loaded.model_config.tie_word_embeddings
