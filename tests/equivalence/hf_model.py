"""Random small models in Hugging Face's own format, and `generate` as the external oracle."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tests.models.checkpoints import generate_each, oracle

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 400,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # far from ties, so that argmax does not depend on rounding
    "bos_token_id": 1,
    "eos_token_id": 2,
}


SMALL_UNGATED = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 400,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NARROW = {"do_layer_norm_before": False, "word_embed_proj_dim": 48}

CONFIGS: Mapping[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "mistral": MistralConfig(**SMALL, sliding_window=37),
    "opt": OPTConfig(**SMALL_UNGATED, ffn_dim=96, init_std=0.2),
    "opt, norms last": OPTConfig(**SMALL_UNGATED, **NARROW, ffn_dim=96, init_std=0.2),
    "gpt2": GPT2Config(**SMALL_UNGATED, initializer_range=0.2),
}


def save_random_model(family: str, folder: Path, seed: int = 0) -> Path:
    """A two-layer model of the family (a key of CONFIGS), saved as transformers saves it."""
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(folder)
    return folder


def save_random_embedder(family: str, folder: Path, pooling: str, seed: int = 0) -> Path:
    """As `save_random_model`, but without an output head, and with the files that sentence-transformers adds.

    pooling: `lasttoken` or `mean_tokens`.
    """
    torch.manual_seed(seed)
    AutoModel.from_config(CONFIGS[family]).save_pretrained(folder)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return folder


@torch.inference_mode()
def embed_alone(folder: Path, prompts: list[tuple[int, ...]], pooling: str) -> list[torch.Tensor]:
    """Pooled last hidden states of transformers' model, fp32 on the CPU, one prompt at a time, not normalized."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    states = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    return [state[-1] if pooling == "lasttoken" else state.mean(0) for state in states]


def random_prompts(count: int, vocab_size: int, seed: int = 0, longest: int = 300) -> list[tuple[int, ...]]:
    """Prompts of 1 to `longest` tokens; both extremes occur."""
    chance = random.Random(seed)
    lengths = [1, longest, *(chance.randint(1, longest) for _ in range(count - 2))]
    return [tuple(chance.randrange(3, vocab_size) for _ in range(length)) for length in lengths]


def generate_alone(folder: Path, prompts: list[tuple[int, ...]], max_tokens: int) -> list[list[int]]:
    """Greedy continuations by `generate`, fp32 on the CPU, one prompt at a time, ignoring end-of-sequence tokens."""
    return generate_each(oracle(folder), prompts, max_tokens)
