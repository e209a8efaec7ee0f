"""Logits against transformers, fp32 on the CPU."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from kernels.expert_panels import ExpertPanels
from kernels.grouped_product import ExpertWeight
from kernels.mxfp4 import GROUP
from service.layers.packed_weight import stays_quantized
from tests.models.checkpoints import gpt_oss, logits_of, oracle
from tests.models.forward import logits
from tests.runner.loading import load

VARIANTS = {
    "usual": {},
    "one expert a token, no biases of attention": {"num_experts_per_tok": 1, "attention_bias": False},
    "tightly clamped": {"swiglu_limit": 0.4, "swiglu_alpha": 1.1},
    "all layers see all": {"layer_types": ["full_attention"] * 2},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_equal_those_of_transformers(changes, tmp_path):
    folder = gpt_oss(tmp_path, **changes)
    tokens = torch.randint(0, 301, (200,)).tolist()
    torch.testing.assert_close(logits(folder, tokens), logits_of(oracle(folder), tokens), atol=3e-4, rtol=3e-4)


def test_experts_of_four_bits_mean_what_they_mean_when_written_out(tmp_path):
    plain, packed = mxfp4_and_floats(tmp_path)
    tokens = torch.randint(0, 301, (120,)).tolist()
    want = logits_of(oracle(plain), tokens)
    torch.testing.assert_close(logits(plain, tokens), want, atol=3e-4, rtol=3e-4)
    torch.testing.assert_close(logits(packed, tokens), want, atol=3e-4, rtol=3e-4)


def test_a_cpu_multiplies_by_four_bits_as_they_are(tmp_path):
    if not stays_quantized(64, 64, torch.bfloat16):
        pytest.skip("this machine runs no compiled loops")
    plain, packed = mxfp4_and_floats(tmp_path)
    four, whole = load(packed, dtype="bfloat16"), load(plain)
    assert four.memory.weights_bytes < whole.memory.weights_bytes / 4
    for (_, mixture), (_, floats) in zip(four.model.mixtures(), whole.model.mixtures(), strict=True):
        for weight, of_floats in zip(mixture.weights, floats.weights, strict=True):
            assert isinstance(weight, ExpertPanels) and isinstance(of_floats, ExpertWeight)
            assert weight.num_bytes < of_floats.values.nbytes / 5, "four bits of 32, a scale and a bias"
            x = torch.randn(5, of_floats.num_inputs).bfloat16()
            got, want = weight.product(2, x).float(), of_floats.product(2, x.float())
            assert (got - want).norm() <= want.norm() * 0.004


def mxfp4_and_floats(tmp_path):
    """The floats that transformers makes of the numbers of an MXFP4 checkpoint, and that one."""
    plain, packed = gpt_oss(tmp_path / "plain"), tmp_path / "packed"
    packed.mkdir()
    floats, bits = load_file(plain / "model.safetensors"), {}
    for name in [name for name in floats if name.endswith(("gate_up_proj", "down_proj"))]:
        num_experts, size, features = floats[name].shape
        blocks = torch.randint(0, 256, (num_experts, features, size // GROUP, GROUP // 2), dtype=torch.uint8)
        scales = torch.randint(121, 126, (num_experts, features, size // GROUP), dtype=torch.uint8)
        floats[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
        bits |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(floats, plain / "model.safetensors", {"format": "pt"})
    save_file(bits | {n: t for n, t in floats.items() if f"{n}_blocks" not in bits}, packed / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    return plain, packed
