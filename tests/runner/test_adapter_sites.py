"""On the stages of a model an adapter's parts together are the whole, and it has the same blocks on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from service.config import LoraConfig
from service.layers.pipeline_stage import WHOLE, PipelineStage, PlannedStage, RankPlace
from service.lora.adapter_layout import AdapterLayout
from service.lora.adapter_store import AdapterStore
from service.models.registry import open_model
from service.runner.adapter_sites import adapter_layout, adapter_sizes, other_stages
from service.runner.kv_storage import KvLayout
from tests.equivalence.random_adapters import save_random_adapters
from tests.models.checkpoints import llama, qwen2_moe
from tests.runner.loading import source

MAX_RANK = 8
LORA = LoraConfig(2, MAX_RANK)


def layout_of(folder: Path, stage: PipelineStage) -> AdapterLayout:
    config, model = open_model(folder, stage=stage)
    layout = KvLayout.of(config, 8, torch.float32, num_stages=stage.size)
    return adapter_layout(model, layout, LORA, other_stages(source(folder), folder, RankPlace(stage=stage)))


@pytest.mark.parametrize("save", [llama, partial(qwen2_moe, decoder_sparse_step=2)], ids=["llama", "other linears"])
def test_stages_have_parts_of_the_whole_in_as_many_blocks(save: Callable[[Path], Path], tmp_path: Path):
    folder = save(tmp_path)
    whole, stages = layout_of(folder, WHOLE), [layout_of(folder, PlannedStage(2, index)) for index in range(2)]
    assert [name for each in stages for name in each.sites] == list(whole.sites)
    assert all(dict(each.all_sites) == dict(whole.sites) for each in stages)
    assert len({adapter_sizes(each, LORA).most_blocks for each in stages}) == 1
    for adapter in save_random_adapters(folder, tmp_path / "adapters", (MAX_RANK, 3)).values():
        stores = [AdapterStore(each, pinned=False) for each in (whole, *stages)]
        read = [store.read("it", adapter) for store in stores]
        assert len({each.digest for each in read}) == 1
        assert read[1].num_blocks == read[2].num_blocks == len(read[1].packed.blocks) == len(read[2].packed.blocks)
        ranks = [each.packed.ranks.tolist() for each in read]
        assert ranks[0] == ranks[1] + ranks[2]
