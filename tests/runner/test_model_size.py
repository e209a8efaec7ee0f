from __future__ import annotations

import torch

from service.config import CacheConfig
from service.runner.model_size import ModelSize
from tests.layers.test_shard import ranks
from tests.models.checkpoints import llama
from tests.runner.loading import load, source

CACHE = CacheConfig(block_size=16, memory_utilization=0.9, memory_bytes=None)


def test_the_size_is_known_before_loading(tmp_path):
    folder = llama(tmp_path)
    loaded = load(folder)
    size = ModelSize.of(source(folder), folder, torch.device("cpu"), CACHE)
    assert size.weights_bytes == loaded.memory.weights_bytes
    assert size.kv_token_bytes * 16 == loaded.block_bytes


def test_each_ranks_size(tmp_path):
    folder = llama(tmp_path)
    whole = ModelSize.of(source(folder), folder, torch.device("cpu"), CACHE)
    parts = [ModelSize.of(source(folder), folder, torch.device("cpu"), CACHE, rank) for rank in ranks(2)]
    norms = 5 * 64 * 4
    assert sum(part.weights_bytes for part in parts) == whole.weights_bytes + norms
    assert [2 * part.kv_token_bytes for part in parts] == [whole.kv_token_bytes] * 2
