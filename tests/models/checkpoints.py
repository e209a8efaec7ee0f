"""Random two-layer models, saved as transformers saves them, and read back as transformers reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 301,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # far from ties: argmax does not hang on the last bit
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_UNKNOWN_TO_OPT_AND_GPT2 = {"intermediate_size", "num_key_value_heads", "initializer_range"}
_SHARED = {name: value for name, value in SMALL.items() if name not in _UNKNOWN_TO_OPT_AND_GPT2}


def llama(folder: Path, **changes: Any) -> Path:
    return _save(LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes})), folder)


def qwen3(folder: Path, **changes: Any) -> Path:
    return _save(Qwen3ForCausalLM(Qwen3Config(**{"head_dim": 24, **SMALL, **changes})), folder)


def mistral(folder: Path, **changes: Any) -> Path:
    """With a window far shorter than the prompts of the tests."""
    return _save(MistralForCausalLM(MistralConfig(**{"sliding_window": 21, **SMALL, **changes})), folder)


def qwen2(folder: Path, **changes: Any) -> Path:
    return _save(Qwen2ForCausalLM(Qwen2Config(**{**SMALL, **changes})), folder)


def opt(folder: Path, **changes: Any) -> Path:
    sizes = {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}
    return _save(OPTForCausalLM(OPTConfig(**{**sizes, **_SHARED, **changes})), folder)


def gpt2(folder: Path, **changes: Any) -> Path:
    sizes = {"n_inner": 96, "initializer_range": 0.2}
    return _save(GPT2LMHeadModel(GPT2Config(**{**sizes, **_SHARED, **changes})), folder)


def _save(model: PreTrainedModel, folder: Path) -> Path:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start as ones and zeros: no test of where they go
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None  # never ends early
    return model


@torch.inference_mode()
def generate(model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    return made[0, len(prompt) :].tolist()


@torch.inference_mode()
def logits_of(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab_size]"""
    return model(torch.tensor([tokens])).logits[0]


def random_prompts(count: int = 64, vocab_size: int = 301, longest: int = 300) -> list[list[int]]:
    """Lengths 1 .. longest, both ends among them."""
    generator = torch.Generator().manual_seed(7)
    lengths = [1, longest, *torch.randint(1, longest + 1, (count - 2,), generator=generator).tolist()]
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]
