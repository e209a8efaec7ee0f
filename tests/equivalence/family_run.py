"""Runs a family's random checkpoint through the whole engine and through `generate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kernels.quantized_weight import quantize_fp8_weight
from service.config import CacheConfig, ModelSource
from service.errors import ModelLoadError
from service.models.causal_lm import CausalLM
from service.models.implementation import WantedImplementation
from service.models.registry import ARCHITECTURES
from service.runner.load import LoadedModel, load_executor
from tests.engine.harness import Harness
from tests.equivalence.family_list import Family
from tests.equivalence.hf_model import random_prompts

MAX_TOKENS = 24
_VOCAB_SIZE = 400
_LONGEST = 90
NUM_PROMPTS = 6
_BLOCK_SIZE = 16
_BUDGET = 64
"""Shorter than the longest prompt, which is therefore computed in chunks beside other requests' decodes."""


@dataclass(frozen=True, slots=True)
class FamilyRun:
    """served_by: native or transformers; None: refused, see `refusal`. is_equal: all tokens, alone and in one batch.
    num_different: distinct tokens that `generate` draws; with few of them, equality would say little."""

    family: Family
    served_by: str | None
    is_equal: bool
    refusal: str = ""
    num_different: int = 0


def run_family(
    family: Family,
    folder: Path,
    implementation: WantedImplementation = "auto",
    quantization: Literal["fp8"] | None = None,
    num_prompts: int = NUM_PROMPTS,
) -> FamilyRun:
    """quantization: the setting. `generate` gets the rounded weights then."""
    family.save(folder)
    try:
        loaded = _load(folder, implementation, quantization)
    except ModelLoadError as fault:
        return FamilyRun(family, None, False, str(fault))
    prompts = random_prompts(num_prompts, _VOCAB_SIZE, longest=_LONGEST)
    model = family.random_model()
    if quantization is not None:
        _round_linears(model, loaded.model)
    expected = _generated(model, prompts)
    is_equal = _alone(loaded, prompts) == expected and _together(loaded, prompts) == expected
    served_by = "native" if type(loaded.model) in set(ARCHITECTURES.values()) else "transformers"
    return FamilyRun(family, served_by, is_equal, num_different=len({token for row in expected for token in row}))


def _load(folder: Path, implementation: WantedImplementation, quantization: Literal["fp8"] | None) -> LoadedModel:
    source = ModelSource(str(folder), None, None, None, "auto", "float32", "cpu", None, 0, implementation, quantization)
    return load_executor(source, folder, CacheConfig(_BLOCK_SIZE, 0.5, 8 << 20), 16, _BUDGET, enforce_eager=True)


def _alone(loaded: LoadedModel, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    return [_outputs(loaded, [prompt])[0] for prompt in prompts]


def _together(loaded: LoadedModel, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    return _outputs(loaded, prompts)


def _outputs(loaded: LoadedModel, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    harness = Harness(
        loaded.num_blocks, _BLOCK_SIZE, max_num_seqs=16, max_num_batched_tokens=_BUDGET, executor=loaded.runner
    )
    request_ids = []
    for prompt in prompts:
        request = harness.request(prompt, MAX_TOKENS, temperature=0.0)
        assert harness.add(request)
        request_ids.append(request.request_id)
    harness.run()
    return [harness.tokens[request_id, 0] for request_id in request_ids]


@torch.no_grad()
def _round_linears(model: PreTrainedModel, served: CausalLM) -> None:
    """Round the linears of the layers, matched by the names that both models have."""
    for linears in served.block_linears():
        for names, _, _ in linears:
            for name in names:
                weight: Tensor = model.get_parameter(f"{name}.weight")
                elements, scales = quantize_fp8_weight(weight)
                weight.copy_(elements.float() * scales)


@torch.inference_mode()
def _generated(model: PreTrainedModel, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    model.generation_config.eos_token_id = None
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0
        )
        outputs.append(made[0, len(prompt) :].tolist())
    return outputs
