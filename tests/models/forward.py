"""One prompt through a loaded model, without a runner."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from kernels.paged_attention_decode import decode_batch
from kernels.paged_attention_prefill import prefill_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs, LayerCache
from service.layers.linear_method import LinearChoice
from service.layers.packed_weight import WeightForm
from service.layers.projection import use_choices
from service.models.causal_lm import CausalLM
from service.models.implementation import WantedImplementation
from service.models.model_config import ModelConfig
from service.models.quantized_model import store_quantized
from service.models.registry import open_model
from service.models.weight_loader import load_weights

BLOCK_SIZE = 16


def logits(
    folder: Path,
    tokens: list[int],
    choice: LinearChoice | None = None,
    implementation: WantedImplementation = "native",
    rows: Tensor | None = None,
) -> Tensor:
    """[len(tokens), vocab_size] in fp32 on the CPU; [len(rows), vocab_size] if only these are read. choice: of all
    products, by quantized weights as they are; None: packed."""
    config, model = ready_model(folder, choice, implementation)
    return logits_of(model, config, tokens, rows)


def ready_model(
    folder: Path, choice: LinearChoice | None = None, implementation: WantedImplementation = "native"
) -> tuple[ModelConfig, CausalLM]:
    """In fp32 on the CPU."""
    config, model = open_model(folder, implementation)
    unread = frozenset[str]()
    if config.quantization is not None:
        unread = store_quantized(model, config.quantization, dequantized=choice is None)
    model.materialize(torch.float32, torch.device("cpu"))
    load_weights(model, folder, unread=unread)
    model.finish_reading(torch.float32)
    model.fit_cpu(torch.float32)
    model.build_positions(config.max_position_embeddings, torch.device("cpu"))
    if choice is None:
        for projection in model.projections:
            projection.pack(WeightForm.ONEDNN)
    else:
        choices = dict.fromkeys((each.shape_name for each in model.projections), choice)
        use_choices(model.projections, choices, torch.device("cpu"))
    model.settle()
    return config, model


def logits_of(model: CausalLM, config: ModelConfig, tokens: list[int], rows: Tensor | None = None) -> Tensor:
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
    if rows is not None:
        table = torch.arange(num_blocks, dtype=torch.int32).expand(len(rows), -1)
        inputs = inputs.read_at(rows, decode_batch(table, (rows + 1).int(), BLOCK_SIZE))
    with torch.inference_mode():
        return model.compute_logits(model(torch.tensor(tokens), positions, caches, inputs))
