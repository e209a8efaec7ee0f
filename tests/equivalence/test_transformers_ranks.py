"""Models computed by transformers' modules on several ranks answer as in one process, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from service.config import ParallelConfig
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.models.dummy_weights import fill_with_dummy_weights
from service.models.registry import ARCHITECTURES, open_model
from tests.equivalence.family_list import FAMILIES
from tests.equivalence.random_adapters import save_random_adapters
from tests.equivalence.rank_work import Asked, answer
from tests.equivalence.stage_work import answer_in_stages
from tests.equivalence.test_tensor_parallel import ALL_KINDS, GREEDY, SAMPLED, check_same, prompts, requests_of
from tests.models.quantized_checkpoints import quantized
from tests.ranks import Ranks

MAX_TOKENS = 4
SERVED = {
    family.name: family
    for family in FAMILIES
    if family.refusal is None and family.model not in ARCHITECTURES and family.text is None
}
SOME = ("SmolLM3", "OLMo 3", "Pythia, GPT-NeoX", "DeepSeek V2")
"""A plan for all that is divided, tied; queries and keys that are gathered, and windows; three in one matrix, biases;
latent keys, experts, and a linear that is whole beside one that is divided."""

ONE_BY_ONE = [
    pytest.param(name, marks=() if name in SOME else pytest.mark.load) for name in sorted(SERVED, key=SOME.__contains__)
]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_two_ranks_and_two_stages_answer_as_one_process(two_ranks: Ranks, tmp_path: Path, name: str):
    folder = SERVED[name].save(tmp_path / "model")
    asked = requests_of(ALL_KINDS)
    alone = answer(ALONE, folder, asked, MAX_TOKENS)
    check_same(alone, two_ranks.run(answer, folder, asked, MAX_TOKENS))
    how = (MAX_TOKENS, ParallelConfig(1, 2), tmp_path / "control")
    last, _ = two_ranks.run(answer_in_stages, folder, asked, *how)
    check_same(alone, [last.answered])


def test_so_they_do_by_weights_of_eight_bits(two_ranks: Ranks, tmp_path: Path):
    folder = quantized(SERVED["SmolLM3"].save(tmp_path / "model"), "channels")
    asked = requests_of(ALL_KINDS)
    alone = answer(ALONE, folder, asked, MAX_TOKENS)
    check_same(alone, two_ranks.run(answer, folder, asked, MAX_TOKENS))
    how = (MAX_TOKENS, ParallelConfig(1, 2), tmp_path / "control")
    last, _ = two_ranks.run(answer_in_stages, folder, asked, *how)
    check_same(alone, [last.answered])


@pytest.mark.load
@pytest.mark.parametrize("name", SOME)
def test_two_stages_of_two_ranks_answer_as_one_process(tmp_path: Path, name: str):
    folder = SERVED[name].save(tmp_path / "model")
    asked = requests_of(ALL_KINDS)
    ranks = Ranks(4)
    try:
        how = (MAX_TOKENS, ParallelConfig(2, 2), tmp_path / "control")
        last, *_ = ranks.run(answer_in_stages, folder, asked, *how)
    finally:
        ranks.stop()
    check_same(answer(ALONE, folder, asked, MAX_TOKENS), [last.answered])


@pytest.mark.parametrize("name", [SOME[0], pytest.param(SOME[1], marks=pytest.mark.load)])
def test_adapters_beside_the_base_answer_as_in_one_process(two_ranks: Ranks, tmp_path: Path, name: str):
    """With OLMo 3, this also covers outputs that are gathered after the adapter."""
    folder = SERVED[name].save(tmp_path / "model")
    adapters = save_random_adapters(folder, tmp_path / "adapters", (3, 8, 1))
    asked = [
        Asked(prompt, {"seed": number, **(GREEDY if number else SAMPLED)}, adapter)
        for number, prompt in enumerate(prompts(2, longest=30))
        for adapter in ("", *adapters)
    ]
    alone = answer(ALONE, folder, asked, MAX_TOKENS, adapters=adapters)
    assert len({tuple(tokens) for tokens in alone.tokens.values()}) > len(asked) // 2
    of_ranks = two_ranks.run(answer, folder, asked, MAX_TOKENS, None, "cpu", adapters)
    assert [each.tokens for each in of_ranks] == [alone.tokens] * 2
    how = (MAX_TOKENS, ParallelConfig(1, 2), tmp_path / "control", None, adapters)
    last, _ = two_ranks.run(answer_in_stages, folder, asked, *how)
    assert last.answered.tokens == alone.tokens


def dummy_sums(parallel: TensorParallel, folder: Path) -> dict[str, float]:
    """Sums of the tensors that are whole on every rank."""
    model = open_model(folder, "auto", parallel).model
    model.materialize(torch.float32, torch.device("cpu"))
    fill_with_dummy_weights(model, 3)
    shards = model.checkpoint_shards()
    parts = {name: tensor for name, tensor in model.checkpoint_tensors().items() if isinstance(tensor, Tensor)}
    return {
        name: float(parallel.all_reduce(tensor.double().sum()[None]) if name in shards else tensor.double().sum())
        for name, tensor in parts.items()
    }


def test_dummy_weights_are_the_same_whoever_divides_them(two_ranks: Ranks, tmp_path: Path):
    folder = SERVED["GLM-4.5"].save(tmp_path)
    alone = dummy_sums(ALONE, folder)
    assert any("experts.down_proj" in name for name in alone)
    for each in two_ranks.run(dummy_sums, folder):
        assert each == pytest.approx(alone, abs=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SOME)
def test_two_gpus_answer_as_one_and_so_do_two_stages(two_gpu_ranks: Ranks, tmp_path: Path, name: str):
    folder = SERVED[name].save(tmp_path / "model")
    asked = requests_of(ALL_KINDS)
    alone = answer(ALONE, folder, asked, MAX_TOKENS, None, "cuda")
    check_same(alone, two_gpu_ranks.run(answer, folder, asked, MAX_TOKENS, None, "cuda"))
    how = (MAX_TOKENS, ParallelConfig(1, 2), tmp_path / "control", *(None,) * 5, "cuda")
    last, _ = two_gpu_ranks.run(answer_in_stages, folder, asked, *how)
    check_same(alone, [last.answered])
