"""Architecture name -> class: an explicit table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from service.errors import ModelLoadError
from service.models.causal_lm import CausalLM
from service.models.llama import Llama
from service.models.model_config import ModelConfig
from service.models.qwen3 import Qwen3

ARCHITECTURES: Mapping[str, Callable[[ModelConfig], CausalLM]] = MappingProxyType(
    {
        "LlamaForCausalLM": Llama,
        "Qwen3ForCausalLM": Qwen3,
    }
)


def build_model(config: ModelConfig) -> CausalLM:
    """The architecture without memory (on the meta device). Raises ModelLoadError for an unknown one."""
    architecture = ARCHITECTURES.get(config.architecture)
    if architecture is None:
        raise ModelLoadError(
            f"config.json: architecture {config.architecture!r} is not served; known: {', '.join(ARCHITECTURES)}"
        )
    with torch.device("meta"):
        return architecture(config)
