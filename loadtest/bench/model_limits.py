"""The least time that a model needs on a device, from the bytes that it must read and its FLOPs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.mxfp4 import GROUP
from loadtest.bench.device_limits import DeviceLimits
from service.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """matrix_bytes: weights that a step reads if all experts get rows; without tables of which it looks up only a few
    rows. expert_bytes: the experts' part of these. expert_share: share of the experts that one token uses.

    token_flops: matrix products per token, without the output head. head_flops: per row of logits.
    pair_flops: attention of one query token to one key token, all layers.
    kv_token_bytes: keys and values of one token, all layers. windows: sliding window of each layer, None for none.
    """

    matrix_bytes: int
    token_flops: int
    head_flops: int
    pair_flops: int
    kv_token_bytes: int
    windows: tuple[int | None, ...]
    expert_bytes: int = 0
    expert_share: float = 1.0

    @classmethod
    def of(cls, config: ModelConfig, weights_bytes: int, kv_token_bytes: int, itemsize: int) -> ModelCosts:
        """weights_bytes: of all parameters. itemsize: bytes per parameter."""
        embedding_size = config.vocab_size * config.embedding_size
        looked_up = 0 if config.tie_word_embeddings else embedding_size
        if config.rope is None:
            looked_up += config.max_position_embeddings * config.hidden_size
        matrix_bytes = weights_bytes - looked_up * itemsize
        expert_elements, expert_bytes, expert_share = _experts(config, itemsize)
        of_all_tokens = (matrix_bytes - expert_bytes) // itemsize - embedding_size
        return cls(
            matrix_bytes=matrix_bytes,
            token_flops=2 * (of_all_tokens + round(expert_share * expert_elements)),
            head_flops=2 * embedding_size,
            pair_flops=4 * config.num_heads * config.head_dim * config.num_layers,
            kv_token_bytes=kv_token_bytes,
            windows=config.sliding_windows,
            expert_bytes=expert_bytes,
            expert_share=expert_share,
        )

    def read_bytes(self, num_rows: float) -> float:
        """Bytes of weights that a step of `num_rows` tokens reads, if each token chooses its experts independently."""
        unread = self.expert_bytes * math.pow(1 - self.expert_share, num_rows)
        return self.matrix_bytes - unread

    def decode_step_s(self, limits: DeviceLimits, batch_size: int, context_len: float) -> float:
        """Seconds of a decode step: one token for each of `batch_size` sequences with `context_len` tokens."""
        weights_s = self.read_bytes(batch_size) / limits.bytes_per_s
        products_s = batch_size * (self.token_flops + self.head_flops) / limits.flops_per_s
        return max(weights_s, products_s) + batch_size * self.seen_tokens(context_len) * self.kv_token_s(limits)

    def kv_token_s(self, limits: DeviceLimits) -> float:
        """Seconds that one more token of context adds to a decode step, without sliding windows."""
        return self.kv_token_bytes / limits.bytes_per_s

    def requests_s(self, limits: DeviceLimits, lengths: Sequence[tuple[int, int]], max_num_seqs: int) -> float:
        """Seconds for all prompts, then all other tokens in batches as full as possible. lengths: (prompt, output)."""
        prompt_flops = sum(
            prompt * (self.token_flops + self.seen_tokens((prompt + 1) / 2) * self.pair_flops) + self.head_flops
            for prompt, _ in lengths
        )
        num_decoded = sum(output - 1 for _, output in lengths)
        num_steps = max(max(output - 1 for _, output in lengths), -(-num_decoded // max_num_seqs))
        weights_s = num_steps * self.read_bytes(num_decoded / num_steps) / limits.bytes_per_s if num_steps else 0.0
        products_s = num_decoded * (self.token_flops + self.head_flops) / limits.flops_per_s
        seen = sum((output - 1) * self.seen_tokens(prompt + output / 2) for prompt, output in lengths)
        return prompt_flops / limits.flops_per_s + max(weights_s, products_s) + seen * self.kv_token_s(limits)

    def seen_tokens(self, context_len: float) -> float:
        """Tokens of the context that a layer attends to, on average over the layers."""
        return sum(min(context_len, window or context_len) for window in self.windows) / len(self.windows)


def _experts(config: ModelConfig, itemsize: int) -> tuple[int, int, float]:
    """Elements of all experts' matrices, their bytes, and the share of the experts that one token uses."""
    experts = config.experts
    if experts is None:
        return 0, 0, 1.0
    per_layer = experts.num_experts * 3 * experts.intermediate_size * config.hidden_size
    elements = sum(experts.layers) * per_layer
    num_bytes = elements // 2 + elements // GROUP if experts.is_mxfp4 else elements * itemsize
    return elements, num_bytes, experts.top_k / experts.num_experts
