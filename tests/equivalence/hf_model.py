"""Random small models in Hugging Face's own format, and what `generate` makes of prompts: the outside oracle."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

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


def save_random_model(family: str, folder: Path, seed: int = 0) -> Path:
    """A two-layer model of the family (`llama` or `qwen3`), saved as transformers saves it."""
    torch.manual_seed(seed)
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SMALL))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True))
    model.save_pretrained(folder)
    return folder


def random_prompts(count: int, vocab_size: int, seed: int = 0, longest: int = 300) -> list[tuple[int, ...]]:
    """Prompts of 1 .. `longest` tokens, both ends among them."""
    chance = random.Random(seed)
    lengths = [1, longest, *(chance.randint(1, longest) for _ in range(count - 2))]
    return [tuple(chance.randrange(3, vocab_size) for _ in range(length)) for length in lengths]


def generate_alone(folder: Path, prompts: list[tuple[int, ...]], max_tokens: int) -> list[list[int]]:
    """Greedy continuations by `generate` in fp32 on the CPU, one prompt at a time, never ending early."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        outputs.append(made[0, len(prompt) :].tolist())
    return outputs
