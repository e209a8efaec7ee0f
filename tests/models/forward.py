"""One prompt through a loaded model, without a runner."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from kernels.skinny_linear import new_arrivals
from service.layers.attention import AttentionInputs, LayerCache
from service.layers.kernel_choices import use_kernels
from service.layers.linear_method import KernelRows
from service.layers.projection import Projection
from service.models.model_config import load_model_config
from service.models.registry import build_model
from service.models.weight_loader import load_weights

BLOCK_SIZE = 16


def logits(folder: Path, tokens: list[int], deferred_rows: range = range(0)) -> Tensor:
    """[len(tokens), vocab_size] in fp32 on the CPU. deferred_rows: of all products, by the kernels' references."""
    config = load_model_config(folder)
    model = build_model(config)
    model.materialize(torch.float32, torch.device("cpu"))
    load_weights(model, folder)
    model.prepare(config.max_position_embeddings, torch.device("cpu"))
    if deferred_rows:
        projections = [module for module in model.modules() if isinstance(module, Projection)]
        choices = {each.plain_weight.shape: KernelRows(deferred=deferred_rows) for each in projections}
        use_kernels(projections, choices, new_arrivals(1, torch.device("cpu")))

    num_blocks = -(-len(tokens) // BLOCK_SIZE)
    shape = (num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    caches = [LayerCache(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_layers)]
    positions = torch.arange(len(tokens))
    batch = prefill_batch(
        torch.arange(num_blocks, dtype=torch.int32)[None],
        torch.tensor([0, len(tokens)], dtype=torch.int32),
        torch.tensor([len(tokens)], dtype=torch.int32),
        len(tokens),
        BLOCK_SIZE,
    )
    inputs = AttentionInputs(cache_slots(positions, BLOCK_SIZE), None, batch)
    with torch.inference_mode():
        return model.compute_logits(model(torch.tensor(tokens), positions, caches, inputs))
