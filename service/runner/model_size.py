"""How large a model is, before any of it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from service.config import CacheConfig, LoraConfig, ModelSource
from service.core.layer_groups import LayerGroups
from service.layers.pipeline_stage import WHOLE, PipelineStage, RankPlace
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.models.context_length import context_length
from service.models.quantized_model import store_for_device
from service.models.registry import open_model
from service.runner.adapter_sites import adapter_layout, adapter_sizes, other_stages
from service.runner.choices.number_format import choose_dtype
from service.runner.kv_storage import KvLayout, layer_groups
from service.runner.worst_case import AdapterSizes


class ModelSize(NamedTuple):
    """weights_bytes, kv_token_bytes: of all weights, and of one token's keys and values in all layers; of one rank, if
    several share the model. layout: of a block. max_model_len: by the model and the setting. adapters: with no slots
    if none are served."""

    weights_bytes: int
    kv_token_bytes: int
    layout: KvLayout
    groups: LayerGroups
    max_model_len: int
    adapters: AdapterSizes

    @classmethod
    def of(
        cls,
        source: ModelSource,
        folder: Path,
        device: torch.device,
        cache: CacheConfig,
        parallel: TensorParallel = ALONE,
        stage: PipelineStage = WHOLE,
        lora: LoraConfig | None = None,
    ) -> ModelSize:
        """The model's size as it will be on the device. Raises ModelLoadError naming the file or field, ConfigError as
        `adapter_layout`, or as `open_model` does."""
        config, model = open_model(folder, source.implementation, parallel, source.quantization, stage)
        dtype = choose_dtype(source.dtype, device, config.checkpoint_dtype)
        max_model_len = context_length(config, source.max_model_len)
        groups = layer_groups(config, max_model_len, cache, stage)
        is_fp8 = cache.dtype == "fp8"
        layout = KvLayout.of(config, cache.block_size, dtype, parallel.size, stage.size, is_fp8=is_fp8, groups=groups)
        if config.quantization is not None:
            store_for_device(model, config.quantization, device, dtype)
        token_bytes = -(-layout.num_groups * layout.block_bytes // cache.block_size)
        weights_bytes = model.weights_bytes(dtype, device)
        adapters = AdapterSizes()
        if lora is not None:
            others = other_stages(source, folder, RankPlace(parallel, stage))
            adapters = adapter_sizes(adapter_layout(model, layout, lora, others), lora)
        return cls(weights_bytes, token_bytes, layout, groups, max_model_len, adapters)
