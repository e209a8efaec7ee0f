"""Phi-3 and Gemma, whose checkpoints merge tensors or whose layers have more norms: with adapters as PEFT computes
them, on two ranks as on one, and with FP8 weights as with the plain weights that these stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.quantized_weight import QuantizedWeight
from service.layers.tensor_parallel import ALONE
from service.models.quantized_model import store_quantized
from service.models.registry import open_model
from service.models.weight_loader import load_weights
from tests.equivalence.peft_model import BASE, PeftOracle, save_adapters
from tests.equivalence.rank_work import Asked, answer
from tests.models.checkpoints import gemma2, gemma3, phi3
from tests.ranks import Ranks

FAMILIES = {"phi3": phi3, "gemma2": gemma2, "gemma3": gemma3}
MAX_TOKENS = 6
PROMPTS = [tuple((7 * i + k * k) % 301 for k in range(length)) for i, length in enumerate((1, 13, 60))]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp(request.param) / "model")


def test_adapters_and_ranks(folder: Path, two_ranks: Ranks):
    adapters = save_adapters(folder, folder.parent / "adapters")
    del adapters["some"]
    oracle = PeftOracle(folder, adapters)
    asked = [Asked(prompt, {"temperature": 0.0}, name) for prompt in PROMPTS for name in (BASE, *adapters)]
    expected = [oracle.generate(each.adapter, each.prompt, MAX_TOKENS)[0] for each in asked]
    assert len({tuple(tokens) for tokens in expected}) > len(PROMPTS)
    for answered in (
        answer(ALONE, folder, asked, MAX_TOKENS, adapters=adapters),
        *two_ranks.run(answer, folder, asked, MAX_TOKENS, None, "cpu", adapters),
    ):
        assert [answered.tokens[f"request-{i}", 0] for i in range(len(asked))] == expected


def test_fp8_at_load_is_of_every_linear_of_a_block(folder: Path):
    config, model = open_model(folder, quantization="fp8")
    assert config.quantization is not None
    store_quantized(model, config.quantization, dequantized=False)
    model.materialize(torch.float32, torch.device("cpu"))
    load_weights(model, folder)
    model.finish_reading(torch.float32)
    _, plain = open_model(folder)
    plain.materialize(torch.float32, torch.device("cpu"))
    load_weights(plain, folder)
    linears = [(one.linear, other.linear) for one, other in zip(
        (each for block in model.block_linears() for each in block),
        (each for block in plain.block_linears() for each in block),
        strict=True,
    )]  # fmt: skip
    assert len(linears) == 8
    for quantized, exact in linears:
        held = quantized.held_weight
        assert isinstance(held, QuantizedWeight)
        torch.testing.assert_close(held.dequantized(), exact.plain_weight, rtol=2**-4, atol=2e-3)
