"""Ranks read their parts of quantized weights, and each has what its part of the plain weight would be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from service.errors import ConfigError, ModelLoadError
from service.layers.linear import Linear
from service.layers.shard import Shard
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.models.causal_lm import CausalLM
from service.models.model_config import load_model_config
from service.models.quantization import Fp8Scheme, Int4Scheme, Int8Scheme, Quantization
from service.models.quantized_model import store_quantized
from service.models.quantized_shards import stored_shards
from service.models.registry import build_model
from service.models.weight_loader import load_weights
from tests.layers.test_shard import Rank
from tests.models.checkpoints import llama, mixtral
from tests.models.quantized_checkpoints import FORMATS, quantized

SIZES = {"intermediate_size": 192, "hidden_size": 128, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("models") / "llama", **SIZES)


def loaded(folder: Path, parallel: TensorParallel, *, dequantized: bool = False) -> CausalLM:
    config = load_model_config(folder)
    model = build_model(config, parallel)
    unread = frozenset[str]()
    if config.quantization is not None:
        unread = store_quantized(model, config.quantization, dequantized=dequantized)
    model.materialize(torch.float32, torch.device("cpu"))
    load_weights(model, folder, unread=unread)
    model.finish_reading(torch.float32)
    return model


def linears(model: CausalLM) -> list[Linear]:
    """Not the head, which has padding on the last rank."""
    return [each.linear for block in model.block_linears() for each in block]


@pytest.mark.parametrize("kind", FORMATS)
def test_each_rank_has_its_part_of_what_the_checkpoint_stands_for(plain: Path, kind: str):
    folder = quantized(plain, kind)
    for rank in (0, 1):
        got = loaded(folder, Rank(rank, 2), dequantized=rank == 1)
        want = loaded(folder / "plain", Rank(rank, 2))
        for mine, theirs in zip(linears(got), linears(want), strict=True):
            held = mine.held_weight
            values = held if isinstance(held, torch.Tensor) else held.dequantized()
            torch.testing.assert_close(values, theirs.plain_weight.data, rtol=1e-6, atol=1e-7)
        assert sum(not isinstance(each.held_weight, torch.Tensor) for each in linears(got)) == (0 if rank else 8)


INT8 = "int8-channels", "int8-packed", "gptq-8"


@pytest.mark.parametrize("kind", ["tensor", "blocks", "awq", "gptq", "packed-zeros", *INT8])
def test_so_has_it_of_every_expert(tmp_path: Path, kind: str):
    """As it is, and made plain."""
    folder = quantized(mixtral(tmp_path / "it", hidden_size=128, intermediate_size=128, num_hidden_layers=1), kind)
    for rank in (0, 1):
        want = loaded(folder / "plain", Rank(rank, 2))
        for dequantized in (False, True):
            got = loaded(folder, Rank(rank, 2), dequantized=dequantized)
            for (_, mine), (_, theirs) in zip(got.mixtures(), want.mixtures(), strict=True):
                assert (mine.gate_up_scales is None) is (dequantized or kind in INT8)
                mine.fit_cpu(torch.float32)
                for name in ("gate_up", "down"):
                    torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("scheme", "size", "named"),
    [
        (
            Int4Scheme("awq", 128, has_zeros=True),
            768,
            r"down_proj.*: a rank's 192 of 768 input .* of groups of 128",
        ),
        (
            Int4Scheme("packed", 64, has_zeros=False),
            224,
            r"down_proj.*rank's 56 of 224 input .* of groups of 64",
        ),
        (Fp8Scheme("block", (64, 32)), 128, r"gate_proj.*: a rank's 32 of 128 output .* whole number of blocks of 64"),
        (Fp8Scheme("block", (16, 64)), 384, r"down_proj.*: a rank's 96 of 384 input .* whole number of blocks of 64"),
        (
            Int4Scheme("gptq", 32, has_zeros=True),
            144,
            r"gate_proj.*: a rank's 36 of 144 output .* whole number of words of 8",
        ),
        (Int8Scheme("packed", 64), 224, r"down_proj.*rank's 56 of 224 input .* of groups of 64"),
        (Int8Scheme("gptq"), 72, r"down_proj.*: a rank's 18 of 72 input .* whole number of words of 4"),
    ],
    ids=str,
)
def test_what_ranks_would_have_to_cut_is_refused_with_the_numbers(tmp_path: Path, scheme, size: int, named: str):
    """Of four ranks, whichever it is. One rank is not asked."""
    folder = llama(tmp_path / "it", hidden_size=512, intermediate_size=size, num_key_value_heads=4)
    quantization = Quantization("some", ((("gate_proj", "up_proj", "down_proj"), scheme),))
    for rank in range(4):
        model = build_model(load_model_config(folder), Rank(rank, 4))
        with pytest.raises(ConfigError, match=f"tensor-parallel-size: 4 ranks cannot share .*{named}"):
            store_quantized(model, quantization, dequantized=False)


def test_experts_that_ranks_would_have_to_cut_are_refused_too(tmp_path: Path):
    folder = mixtral(tmp_path / "it", intermediate_size=96)
    quantization = Quantization("some", ((("experts",), Int4Scheme("packed", 32, has_zeros=False)),))
    model = build_model(load_model_config(folder), Rank(1, 2))
    with pytest.raises(ConfigError, match=r"experts\.0\.w2.*rank's 48 of 96 .* whole number of groups of 32"):
        store_quantized(model, quantization, dequantized=False)


def test_experts_of_which_some_are_plain_are_refused(tmp_path: Path):
    folder = mixtral(tmp_path / "it")
    quantization = Quantization("some", ((("w1", "w3"), Int4Scheme("packed", 32, has_zeros=False)),))
    with pytest.raises(ModelLoadError, match=r"some weights of model\.layers\.0\..*experts are quantized"):
        store_quantized(build_model(load_model_config(folder), ALONE), quantization, dequantized=False)


def test_a_quantized_head_is_refused(plain: Path):
    every = Quantization("some", ((("Linear",), Fp8Scheme("channel")),))
    store_quantized(build_model(load_model_config(plain), ALONE), every, dequantized=False)
    with pytest.raises(ConfigError, match="cannot share lm_head, which is some: only an unquantized output head"):
        store_quantized(build_model(load_model_config(plain), Rank(0, 2)), every, dequantized=False)


def test_a_last_block_may_have_fewer_rows():
    shards = stored_shards(Fp8Scheme("block", (16, 32), "weight_scale_inv"), Shard(0, 40, (range(16, 40),)))
    assert shards["weight_scale_inv"] == Shard(0, 3, (range(1, 3),))
