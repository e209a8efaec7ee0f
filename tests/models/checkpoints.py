"""Random two-layer models, saved as transformers saves them, and read back as transformers reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
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


def mixtral(folder: Path, **changes: Any) -> Path:
    return _save(MixtralForCausalLM(MixtralConfig(**{"num_local_experts": 5, **SMALL, **changes})), folder)


def qwen2_moe(folder: Path, **changes: Any) -> Path:
    sizes = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 6}
    return _save(Qwen2MoeForCausalLM(Qwen2MoeConfig(**{**sizes, **SMALL, **changes})), folder)


def qwen3_moe(folder: Path, **changes: Any) -> Path:
    sizes = {"head_dim": 24, "moe_intermediate_size": 24, "num_experts": 10, "num_experts_per_tok": 3}
    return _save(Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**sizes, **SMALL, **changes})), folder)


def gpt_oss(folder: Path, **changes: Any) -> Path:
    """With a window far shorter than the prompts of the tests, and a YaRN that begins to stretch within them."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "truncate": False,
    }
    sizes = {"head_dim": 24, "num_local_experts": 6, "sliding_window": 21, "rope_parameters": rope}
    return _save(GptOssForCausalLM(GptOssConfig(**{**sizes, **SMALL, **changes})), folder)


def olmoe(folder: Path, **changes: Any) -> Path:
    sizes = {"num_experts": 6, "num_experts_per_tok": 2, "pad_token_id": None}
    return _save(OlmoeForCausalLM(OlmoeConfig(**{**sizes, **SMALL, **changes})), folder)


def phi3(folder: Path, **changes: Any) -> Path:
    return _save(Phi3ForCausalLM(Phi3Config(**{"pad_token_id": 0, **SMALL, **changes})), folder)


def gemma(folder: Path, **changes: Any) -> Path:
    return _gemma(GemmaForCausalLM(GemmaConfig(**{"head_dim": 24, **SMALL, **changes})), folder)


def gemma2(folder: Path, **changes: Any) -> Path:
    """With caps that bite, and a window far shorter than the prompts of the tests."""
    sizes = {"head_dim": 24, "sliding_window": 21, "query_pre_attn_scalar": 17, "attn_logit_softcapping": 3.0}
    return _gemma(Gemma2ForCausalLM(Gemma2Config(**{**sizes, **SMALL, **changes})), folder)


def gemma3(folder: Path, **changes: Any) -> Path:
    """Likewise; one layer of the two sees all."""
    kinds = ["sliding_attention", "full_attention"]
    sizes = {"head_dim": 24, "sliding_window": 21, "query_pre_attn_scalar": 17, "layer_types": kinds}
    return _gemma(Gemma3ForCausalLM(Gemma3TextConfig(**{**sizes, **SMALL, **changes})), folder)


def opt(folder: Path, **changes: Any) -> Path:
    sizes = {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}
    return _save(OPTForCausalLM(OPTConfig(**{**sizes, **_SHARED, **changes})), folder)


def gpt2(folder: Path, **changes: Any) -> Path:
    sizes = {"n_inner": 96, "initializer_range": 0.2}
    return _save(GPT2LMHeadModel(GPT2Config(**{**sizes, **_SHARED, **changes})), folder)


def _gemma(model: PreTrainedModel, folder: Path) -> Path:
    with torch.no_grad():  # else the tied head would repeat each token
        model.get_input_embeddings().weight.mul_(0.1)
    return _save(model, folder)


def _save(model: PreTrainedModel, folder: Path) -> Path:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start as ones and zeros: no test of where they go
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def oracle(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    # Up to transformers 5.17 the default attention leaves out a cap of logits, silently.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None  # never ends early
    return model


@torch.inference_mode()
def generate(model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    return made[0, len(prompt) :].tolist()


_AT_ONCE = 16


@torch.inference_mode()
def generate_each(model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """As `generate` of each prompt, which never ends early; together they take a fifth of the time. The shorter are
    padded on their left, which in fp32 changes no token: tests/equivalence/test_greedy_parity.py."""
    made: dict[int, list[int]] = {}
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for first in range(0, len(prompts), _AT_ONCE):
        some = by_length[first : first + _AT_ONCE]
        longest = len(prompts[some[-1]])
        ids = torch.tensor([[0] * (longest - len(prompts[index])) + list(prompts[index]) for index in some])
        mask = torch.tensor([[0] * (longest - len(prompts[index])) + [1] * len(prompts[index]) for index in some])
        rows = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        made.update(zip(some, rows[:, longest:].tolist(), strict=True))
    return [made[index] for index in range(len(prompts))]


@torch.inference_mode()
def logits_of(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab_size]"""
    return model(torch.tensor([tokens])).logits[0]


def random_prompts(count: int = 64, vocab_size: int = 301, longest: int = 300) -> list[list[int]]:
    """Lengths 1 .. longest, both ends among them."""
    generator = torch.Generator().manual_seed(7)
    lengths = [1, longest, *torch.randint(1, longest + 1, (count - 2,), generator=generator).tolist()]
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]
