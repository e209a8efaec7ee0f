from __future__ import annotations

import torch

from service.core.iteration_plan import BlockCopy
from service.models.model_config import parse_model_config
from service.runner.kv_storage import KvLayout, KvStorage
from tests.models.test_model_config import FIELDS

CONFIG = parse_model_config({**FIELDS, "num_key_value_heads": 2})


def storage(num_blocks=5, dtype=torch.float32):
    return KvStorage(KvLayout.of(CONFIG, 4, dtype), num_blocks, torch.device("cpu"))


def test_one_block_is_one_piece_of_so_many_bytes():
    layout = KvLayout.of(CONFIG, 4, torch.bfloat16)
    assert layout.block_bytes == 2 * 2 * 4 * 2 * 16 * 2
    keys = storage(dtype=torch.bfloat16).layers[0].keys
    assert keys.stride(0) * keys.element_size() == layout.block_bytes
    assert keys[0].is_contiguous()


def test_layers_are_views_that_do_not_overlap():
    kv = storage()
    assert len(kv.layers) == 2
    views = [view for layer in kv.layers for view in layer]
    for number, view in enumerate(views):
        assert view.shape == (5, 4, 2, 16)
        assert (view == 0).all()
        view.fill_(number + 1)
    assert [float(view.mean()) for view in views] == [1, 2, 3, 4]


def test_a_copy_takes_all_layers():
    kv = storage()
    for number, view in enumerate(view for layer in kv.layers for view in layer):
        view.copy_(torch.arange(5)[:, None, None, None].expand_as(view) + 10 * number)
    kv.copy([BlockCopy(1, 4), BlockCopy(2, 0)])
    for number, view in enumerate(view for layer in kv.layers for view in layer):
        assert (view[:, 0, 0, 0] - 10 * number).tolist() == [2, 1, 2, 3, 1]
