"""Greedy outputs of the whole engine with mixtures of experts equal Hugging Face's `generate`, token for token in fp32.

Prompts are cut into chunks beside decodes. Alone, and all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from service.config import CacheConfig, ModelSource
from service.runner.load import load_executor
from tests.engine.harness import Harness
from tests.equivalence.hf_model import SMALL, generate_alone, random_prompts

BLOCK_SIZE, BUDGET, MAX_NUM_SEQS, MAX_TOKENS = 16, 128, 16, 12
CONFIGS: Mapping[str, PreTrainedConfig] = {
    "mixtral": MixtralConfig(**SMALL, num_local_experts=6, sliding_window=37),
    "qwen3-moe": Qwen3MoeConfig(**SMALL, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=32),
    "qwen2-moe": Qwen2MoeConfig(
        **SMALL, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48
    ),
    "gpt-oss": GptOssConfig(**SMALL, head_dim=16, num_local_experts=6, num_experts_per_tok=2, sliding_window=37),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("family", CONFIGS)
def test_tokens_are_those_of_generate_alone_and_together(family: str, device: str, tmp_path: Path):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[family]).save_pretrained(tmp_path)
    prompts = random_prompts(8, 400, longest=200)
    expected = generate_alone(tmp_path, prompts, MAX_TOKENS)
    source = ModelSource(str(tmp_path), None, None, None, "auto", "float32", device, None, 0)
    loaded = load_executor(source, tmp_path, CacheConfig(BLOCK_SIZE, 0.5, 2**24), MAX_NUM_SEQS, BUDGET)
    harness = Harness(
        loaded.num_blocks,
        BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=BUDGET,
        executor=loaded.runner,
    )

    def add(prompt: tuple[int, ...]) -> str:
        request = harness.request(prompt, MAX_TOKENS, 1, 0, temperature=0.0)
        harness.clock.advance(0.001)
        assert harness.add(request)
        return request.request_id

    together = [add(prompt) for prompt in prompts]
    harness.run()
    assert [harness.tokens[request_id, 0] for request_id in together] == expected
    for prompt, tokens in zip(prompts[:3], expected, strict=False):
        alone = add(prompt)
        harness.run()
        assert harness.tokens[alone, 0] == tokens
