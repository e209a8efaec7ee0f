"""A checkpoint that bitsandbytes has quantized is the plain model that it makes of it."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.config import LoraConfig
from service.models.registry import open_model
from service.models.transformers_backend.model import TransformersModel
from service.models.weight_loader import load_weights
from tests.equivalence.family_list import FAMILIES
from tests.models.bitsandbytes_checkpoints import BITSANDBYTES
from tests.models.checkpoints import llama, qwen2
from tests.models.quantized_checkpoints import quantized
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy

PROMPTS = [[1, 17, 42, 99, 7], [1, 250, 3], list(range(1, 40))]


def tokens(folder, **how):
    loaded = load(folder, **how)
    return PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(PROMPTS, greedy(12))


@pytest.mark.parametrize("save", [llama, qwen2])
@pytest.mark.parametrize("kind", BITSANDBYTES)
def test_its_tokens_are_those_of_the_model_that_it_stands_for(save, kind, tmp_path, caplog):
    folder = quantized(save(tmp_path / "it"), kind, BITSANDBYTES)
    with caplog.at_level("INFO", "headrace"):
        loaded = load(folder)
    assert loaded.quantization == f"bitsandbytes {kind.split()[0].rstrip(',')}"
    assert f"weights: quantized, {loaded.quantization}; dequantized while they are read: memory and" in caplog.text
    assert loaded.memory.weights_bytes == load(folder / "plain").memory.weights_bytes
    assert PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(PROMPTS, greedy(12)) == tokens(folder / "plain")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("SmolLM3", "nf4, nested"), ("Granite 3", "int8"), ("Gemma 3 (with vision)", "fp4"), ("Qwen2.5-VL", "nf4")],
)
def test_so_are_those_of_other_families(name, kind, tmp_path):
    """Those that transformers' modules compute, and the text part of those with vision."""
    (family,) = (each for each in FAMILIES if each.name == name)
    folder = quantized(family.save(tmp_path / "it"), kind, BITSANDBYTES)
    loaded = load(folder)
    assert isinstance(loaded.model, TransformersModel) is (name in {"SmolLM3", "Granite 3"})
    assert tokens(folder) == tokens(folder / "plain")


@pytest.mark.parametrize(
    ("name", "kind"), [("Mixtral", "nf4, nested"), ("Qwen3-MoE", "int8"), ("GLM-4.5", "nf4, nested")]
)
def test_so_are_those_of_experts(name, kind, tmp_path):
    """Of each expert by itself, as checkpoints have them that transformers 4 has written."""
    (family,) = (each for each in FAMILIES if each.name == name)
    folder = quantized(family.save(tmp_path / "it"), kind, BITSANDBYTES)
    assert isinstance(load(folder).model, TransformersModel) is (name == "GLM-4.5")
    assert tokens(folder) == tokens(folder / "plain")


def test_parts_of_a_merged_matrix_need_not_be_quantized_alike(tmp_path):
    folder = quantized(llama(tmp_path / "it"), "nf4, nested", BITSANDBYTES)
    kept = "model.layers.1.self_attn.k_proj.weight"
    for there in (folder, folder / "plain"):
        tensors = load_file(there / "model.safetensors")
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(kept)}
        torch.manual_seed(3)
        save_file(tensors | {kept: torch.randn(32, 64) / 5}, there / "model.safetensors")
    assert tokens(folder) == tokens(folder / "plain")


def test_adapters_can_be_trained_beside_them(tmp_path):
    folder = quantized(llama(tmp_path / "it"), "nf4", BITSANDBYTES)
    assert load(folder, lora=LoraConfig(num_slots=1, max_rank=8, trains=True)).adapters is not None


needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed: pip install bitsandbytes"
)
BY_ITSELF = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4, nested": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True},
    "fp4 in bf16, nested": {
        "load_in_4bit": True,
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_quant_storage": "bfloat16",
    },
    "nf4, some plain": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "llm_int8_skip_modules": ["lm_head", "model.layers.0.mlp", "o_proj"],
    },
    "int8": {"load_in_8bit": True},
}
WHOLE_BLOCKS = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
"""Rows of whole blocks: of others bitsandbytes 0.50.2 makes wrong numbers on CPUs with AVX512."""


def by_bitsandbytes(plain: Path, there: Path, how: dict[str, object]) -> None:
    """The model as bitsandbytes quantizes it, and in the folder `plain` as it dequantizes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import bitsandbytes
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

        config = BitsAndBytesConfig(**how)
        model = AutoModelForCausalLM.from_pretrained(
            plain, quantization_config=config, device_map="cpu", dtype=torch.bfloat16
        )
        model.save_pretrained(there)
    weights = {}
    for name, module in model.named_modules():
        for child, parameter in module.named_parameters(recurse=False):
            value = parameter.data
            if child == "weight" and isinstance(module, bitsandbytes.nn.Linear4bit):
                value = bitsandbytes.functional.dequantize_4bit(value, parameter.quant_state)
            if child == "weight" and isinstance(module, bitsandbytes.nn.Linear8bitLt):
                value = bitsandbytes.functional.int8_vectorwise_dequant(value, parameter.SCB)
            weights[f"{name}.{child}"] = value.float().contiguous()
    fields = json.loads((there / "config.json").read_text())
    del fields["quantization_config"]
    (there / "plain").mkdir()
    (there / "plain" / "config.json").write_text(json.dumps(fields))
    save_file(weights, there / "plain" / "model.safetensors")


def read(folder: Path) -> dict[str, torch.Tensor]:
    """The weights, by their names."""
    model = open_model(folder).model
    model.materialize(torch.float32, torch.device("cpu"))
    load_weights(model, folder)
    return {name: tensor for name, tensor in model.checkpoint_tensors().items() if isinstance(tensor, torch.Tensor)}


@needs_bitsandbytes
@pytest.mark.parametrize("save", [llama, qwen2])
@pytest.mark.parametrize("how", BY_ITSELF)
def test_what_bitsandbytes_makes_is_read_as_it_reads_it(save, how, tmp_path):
    by_bitsandbytes(save(tmp_path / "it", **WHOLE_BLOCKS), tmp_path / "made", BY_ITSELF[how])
    got, want = read(tmp_path / "made"), read(tmp_path / "made" / "plain")
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert tokens(tmp_path / "made") == tokens(tmp_path / "made" / "plain")
