"""Architecture name -> class: an explicit table. Transformers' modules may compute architectures that are not in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from service.layers.pipeline_stage import WHOLE, PipelineStage
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.models.causal_lm import CausalLM
from service.models.gemma import Gemma
from service.models.gpt2 import Gpt2
from service.models.gpt_oss import GptOss
from service.models.implementation import WantedImplementation, choose_implementation
from service.models.llama import Llama
from service.models.mixtral import Mixtral
from service.models.model_config import (
    ModelConfig,
    architecture_of,
    parse_model_config,
    quantization_of,
    read_config,
)
from service.models.olmoe import Olmoe
from service.models.opt import Opt
from service.models.qwen3 import Qwen3
from service.models.rank_division import check_divides, check_heads, check_stages

ARCHITECTURES: Mapping[str, Callable[[ModelConfig], CausalLM]] = MappingProxyType(
    {
        "LlamaForCausalLM": Llama,
        "MistralForCausalLM": Llama,
        "Qwen2ForCausalLM": Llama,
        "Qwen3ForCausalLM": Qwen3,
        "MixtralForCausalLM": Mixtral,
        "Qwen2MoeForCausalLM": Llama,
        "Qwen3MoeForCausalLM": Qwen3,
        "GptOssForCausalLM": GptOss,
        "OlmoeForCausalLM": Olmoe,
        "Phi3ForCausalLM": Llama,
        "GemmaForCausalLM": Gemma,
        "Gemma2ForCausalLM": Gemma,
        "Gemma3ForCausalLM": Gemma,
        "OPTForCausalLM": Opt,
        "GPT2LMHeadModel": Gpt2,
    }
)
"""All architectures that model_config.py reads. Mistral is Llama with a sliding window, Qwen2 is Llama with biases of
q, k and v, Phi-3 and Phi-4 are Llama with merged tensors. Qwen2-MoE and Qwen3-MoE differ from Qwen2 and Qwen3 in
config.json's experts."""


class OpenedModel(NamedTuple):
    """model: without memory (on the meta device)."""

    config: ModelConfig
    model: CausalLM


def open_model(
    folder: Path,
    wanted: WantedImplementation = "auto",
    parallel: TensorParallel = ALONE,
    quantization: str | None = None,
    stage: PipelineStage = WHOLE,
) -> OpenedModel:
    """Read the folder's config.json and build its model. quantization: the setting. Raises ModelLoadError naming the
    field, or what is not supported; ConfigError as `build_model` does."""
    fields = read_config(folder)
    if choose_implementation(fields, wanted, quantization) == "native":
        config = parse_model_config(fields, quantization)
        return OpenedModel(config, build_model(config, parallel, stage))
    # Not imported above: it takes seconds, and transformers is an optional dependency.
    from service.models.transformers_backend.build import build_with_transformers

    config, model = build_with_transformers(folder)
    quantized = quantization_of(architecture_of(fields), fields, quantization)
    if quantized is not None:
        model.check_quantizes(quantized)
        config = replace(config, quantization=quantized)
    check_heads(config, parallel.size)
    return OpenedModel(config, _part(config, model, parallel, stage))


def build_model(config: ModelConfig, parallel: TensorParallel = ALONE, stage: PipelineStage = WHOLE) -> CausalLM:
    """The architecture, or this rank's part of it, without memory (on the meta device). Raises ConfigError, with the
    numbers, if the ranks cannot share it."""
    with torch.device("meta"):
        model = ARCHITECTURES[config.architecture](config)
        check_divides(config, parallel.size)
        return _part(config, model, parallel, stage)


def _part(config: ModelConfig, model: CausalLM, parallel: TensorParallel, stage: PipelineStage) -> CausalLM:
    """This rank's part."""
    if stage.size > 1:
        check_stages(config, stage.size)
        model.cut(stage)
    if parallel.size > 1:
        model.shard(parallel)
    return model
