from __future__ import annotations

import torch

from service.runner.model_size import ModelSize
from tests.models.checkpoints import llama
from tests.runner.loading import load, source


def test_the_size_is_known_before_loading(tmp_path):
    folder = llama(tmp_path)
    loaded = load(folder)
    size = ModelSize.of(source(folder), folder, torch.device("cpu"))
    assert size.weights_bytes == loaded.memory.weights_bytes
    assert size.kv_token_bytes * 16 == loaded.block_bytes
