"""A quantized checkpoint gives the tokens of the model that its numbers stand for."""

from __future__ import annotations

import pytest
import torch

from kernels.expert_panels import ExpertPanels
from service.config import LoraConfig
from service.errors import ConfigError
from service.layers.linear_method import KernelRows, RowRange
from service.layers.packed_weight import WeightForm, stays_quantized
from service.models.model_config import load_model_config
from service.models.quantized_model import made_plain, store_for_device
from service.models.registry import build_model
from service.models.transformers_backend.model import TransformersModel
from tests.equivalence.family_list import FAMILIES
from tests.models.checkpoints import llama, mixtral, olmoe, qwen3_moe
from tests.models.forward import logits
from tests.models.quantized_checkpoints import quantized
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy

EXPERT_SIZES = {"intermediate_size": 64, "moe_intermediate_size": 64}
INT8 = ["int8-channels", "int8-tensor", "int8-packed", "int8-packed-channels", "gptq-8"]
PROMPTS = [[1, 17, 42, 99, 7], [1, 250, 3], list(range(1, 40))]


@pytest.fixture(scope="module", params=["channels", "blocks", "awq", "gptq", "packed-zeros", "int8-channels", "gptq-8"])
def folder(request, tmp_path_factory):
    return quantized(llama(tmp_path_factory.mktemp("models") / "llama"), request.param)


def tokens(folder, **how):
    loaded = load(folder, **how)
    return PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(PROMPTS, greedy(12))


def test_its_tokens_are_those_of_the_model_that_it_stands_for(folder):
    assert tokens(folder) == tokens(folder / "plain")


@pytest.mark.parametrize("kind", ["fp8", "awq", "gptq", "auto-round-awq", "packed", "packed-zeros", "blocks", *INT8])
def test_on_a_cpu_its_few_bits_are_held_and_multiplied_by(kind, tmp_path, caplog):
    """In bf16, where loops are compiled: the weights keep the checkpoint's bytes, and no plain weight is ever made."""
    if not stays_quantized(64, 64, torch.bfloat16):
        pytest.skip("this machine runs no compiled loops")
    base = llama(tmp_path / "llama", hidden_size=128, intermediate_size=256)
    folder = base if kind == "fp8" else quantized(base, kind)
    plain = base if kind == "fp8" else folder / "plain"
    how = {"quantization": "fp8"} if kind == "fp8" else {}
    with caplog.at_level("INFO", "headrace"):
        few, whole = load(folder, dtype="bfloat16", **how), load(plain, dtype="bfloat16")
    assert "; kept quantized" in caplog.text
    assert {choice for name, choice in few.choices.linears.items() if "-" in name} == {WeightForm.LOOPS}
    held, of_plain = (held_bytes(loaded.model) for loaded in (few, whole))
    assert held < of_plain * (0.36 if "int4" in few.quantization else 0.6)
    for got, want in zip(few.model.projections, whole.model.projections, strict=True) if kind != "fp8" else ():
        x = torch.randn(5, want.own_method.packed.num_inputs).bfloat16()
        with torch.inference_mode():
            product, exact = got(x).float(), want(x).float()
        assert (product - exact).norm() <= exact.norm() * 0.004, "each rounded once, one of them its weight, too"
    assert len(PlanPlayer(few.runner, few.num_blocks, 16).generate(PROMPTS, greedy(12))[0]) == 12


@pytest.mark.parametrize(
    ("save", "kind"),
    [(qwen3_moe, "awq"), (mixtral, "packed"), (qwen3_moe, "blocks"), (mixtral, "fp8")],
)
def test_so_are_those_of_experts(save, kind, tmp_path, caplog):
    if not stays_quantized(64, 64, torch.bfloat16):
        pytest.skip("this machine runs no compiled loops")
    base = save(tmp_path / "it", **EXPERT_SIZES)
    folder = base if kind == "fp8" else quantized(base, kind)
    how = {"quantization": "fp8"} if kind == "fp8" else {}
    with caplog.at_level("INFO", "headrace"):
        few = load(folder, dtype="bfloat16", **how)
    assert "dequantized" not in caplog.text
    exact = load(folder, dtype="float32", **how)  # of the same numbers, made plain
    assert few.memory.weights_bytes < exact.memory.weights_bytes / 2
    for (_, got), (_, want) in zip(few.model.mixtures(), exact.model.mixtures(), strict=True):
        assert all(isinstance(weight, ExpertPanels) for weight in got.weights)
        for weight, plain in zip(got.weights, want.weights, strict=True):
            x = torch.randn(5, plain.num_inputs).bfloat16()
            product, of_plain = weight.product(1, x).float(), plain.product(1, x.float())
            assert (product - of_plain).norm() <= of_plain.norm() * 0.004
    assert len(PlanPlayer(few.runner, few.num_blocks, 16).generate(PROMPTS, greedy(12))[0]) == 12


def test_experts_of_int8_are_made_plain_and_the_log_says_so(tmp_path, caplog):
    folder = quantized(mixtral(tmp_path / "it", **EXPERT_SIZES), "int8-channels")
    with caplog.at_level("INFO", "headrace"):
        loaded = load(folder, dtype="bfloat16")
    assert "weights: quantized, compressed-tensors int8; dequantized on the CPU" in caplog.text
    assert "the experts" in caplog.text and loaded.quantization == "compressed-tensors int8"


@pytest.mark.parametrize("save", [llama, mixtral])
def test_for_a_gpu_int8_is_made_plain(save, tmp_path):
    """And FP8 and int4 are not."""
    base, gpu = save(tmp_path / "it"), torch.device("cuda")
    for kind in ("int8-channels", "channels", "awq"):
        config = load_model_config(quantized(base, kind))
        model = build_model(config)
        store_for_device(model, config.quantization, gpu, torch.bfloat16)
        said = made_plain(model, torch.bfloat16, gpu)
        assert ("linears" in said) is ("int8" in kind) and ("experts" in said) is ("int8" in kind and save is mixtral)


def held_bytes(model):
    """Bytes of the layers' linears, in the forms that are kept."""
    kept = [linear.own_method.packed for block in model.block_linears() for _, linear, _ in block]
    of_onednn = [packed._onednn for packed in kept if packed._onednn is not None]
    return sum(weight.numel() * weight.element_size() for weight in of_onednn) + sum(
        packed._loops.num_bytes for packed in kept if packed._loops is not None
    )


@pytest.mark.each_once
@pytest.mark.parametrize("choice", [KernelRows(), KernelRows(skinny=64, add_norm=RowRange(1, 64))], ids=str)
def test_its_logits_are_too_where_products_are_by_its_weights_as_they_are(folder, choice):
    prompt = PROMPTS[-1]
    got, want = logits(folder, prompt, choice), logits(folder / "plain", prompt)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("save", "kind"),
    [
        (mixtral, "channels"),
        (qwen3_moe, "blocks"),
        (qwen3_moe, "tensor"),
        (mixtral, "awq"),
        (qwen3_moe, "gptq"),
        (olmoe, "packed"),
        (qwen3_moe, "packed-zeros"),
        (mixtral, "int8-channels"),
        (qwen3_moe, "gptq-8"),
    ],
)
def test_so_is_a_quantized_mixture_of_experts(save, kind, tmp_path):
    folder = quantized(save(tmp_path / "it", **EXPERT_SIZES), kind)
    assert tokens(folder) == tokens(folder / "plain")
    got, want = (logits(each, PROMPTS[-1], KernelRows()) for each in (folder, folder / "plain"))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SmolLM3", "channels"),
        ("Granite 3", "blocks"),
        ("StableLM 2", "awq"),
        ("OLMo 2", "gptq"),
        ("Seed-OSS", "packed-zeros"),
        ("SmolLM3", "int8-packed"),
    ],
)
def test_so_is_one_that_transformers_modules_compute(name, kind, tmp_path):
    (family,) = (each for each in FAMILIES if each.name == name)
    folder = quantized(family.save(tmp_path / "it"), kind)
    assert isinstance(load(folder).model, TransformersModel)
    assert tokens(folder) == tokens(folder / "plain")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Gemma 3 (with vision)", "channels"),
        ("Mistral Small 3 (with vision)", "packed-zeros"),
        ("Qwen2.5-VL", "awq"),
        ("Qwen2.5-VL", "int8-tensor"),
    ],
)
def test_so_is_the_text_part_of_one_with_vision(name, kind, tmp_path):
    (family,) = (each for each in FAMILIES if each.name == name)
    folder = quantized(family.save(tmp_path / "it"), kind)
    assert load(folder).quantization is not None
    assert tokens(folder) == tokens(folder / "plain")


def test_fp8_at_load_is_named_and_near_and_no_base_for_training(tmp_path, caplog):
    folder = llama(tmp_path / "llama")
    with caplog.at_level("INFO", "headrace"):
        loaded = load(folder, quantization="fp8")
    assert loaded.quantization == "fp8" and load(folder).quantization is None
    assert "weights: quantized, fp8; dequantized on the CPU" in caplog.text
    got = PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(PROMPTS, greedy(12))
    assert [answer[0] for answer in got] == [answer[0] for answer in tokens(folder)]
    with pytest.raises(ConfigError, match="fine-tuning: the weights are quantized"):
        load(folder, quantization="fp8", lora=LoraConfig(num_slots=1, max_rank=8, trains=True))
