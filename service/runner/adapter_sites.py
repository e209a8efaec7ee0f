"""Which parts of a model adapters may change, and the memory that adapters take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from service.config import LoraConfig, ModelSource
from service.layers.linear import NamedLinear
from service.layers.pipeline_stage import PlannedStage, RankPlace, layers_of
from service.layers.shard import Shard
from service.lora.adapter_folder import AdapterSite
from service.lora.adapter_layout import AdapterLayout
from service.models.causal_lm import CausalLM
from service.models.registry import open_model
from service.runner.adapter_tables import AdapterTables
from service.runner.kv_storage import KvLayout
from service.runner.worst_case import AdapterSizes, moments_bytes, training_bytes, training_graph_bytes


def adapter_layout(
    model: CausalLM, layout: KvLayout, lora: LoraConfig, others: Sequence[Mapping[str, AdapterSite]]
) -> AdapterLayout:
    sites, num_elements = _adapter_sites(model.block_linears()), layout.block_bytes // layout.dtype.itemsize
    return AdapterLayout(sites, lora.max_rank, num_elements, layout.dtype, others)


def other_stages(source: ModelSource, folder: Path, place: RankPlace) -> list[Mapping[str, AdapterSite]]:
    """What adapters may change in each other pipeline stage. Read from the model's description: no stage has the
    others' modules."""
    own, size = place.stage.index, place.stage.size
    if size == 1:
        return []
    linears = open_model(folder, source.implementation, place.parallel, source.quantization).model.block_linears()
    parts = [layers_of(PlannedStage(size, index), len(linears)) for index in range(size) if index != own]
    return [_adapter_sites(linears[part.start : part.stop]) for part in parts]


def _adapter_sites(block_linears: Sequence[Sequence[NamedLinear]]) -> dict[str, AdapterSite]:
    return {
        name: _adapter_site(size, linear.in_features, shard)
        for linears in block_linears
        for names, linear, _ in linears
        for name, size, shard in zip(names, linear.out_features, linear.weight_shards, strict=True)
    }


def _adapter_site(out_features: int, in_features: int, shard: Shard | None) -> AdapterSite:
    """The site of one part of a linear. out_features, in_features: of this rank's shard."""
    own = out_features, in_features
    out_features, in_features = own if shard is None else shard.whole_shape(own)
    return AdapterSite(in_features, out_features, shard)


def adapter_sizes(layout: AdapterLayout, lora: LoraConfig) -> AdapterSizes:
    num_slots = lora.num_slots
    table_bytes = AdapterTables.num_bytes(len(layout.sites), num_slots, layout.max_rank)
    of_slots = AdapterSizes(num_slots, num_slots * layout.most_blocks, table_bytes)
    if not lora.trains:
        return of_slots
    of_training = training_bytes(layout) + training_graph_bytes(layout)
    return replace(of_slots, training_bytes=of_training, moments_bytes=moments_bytes(layout))
