from __future__ import annotations

import pytest
import torch

from service.core.block_moves import BlockCopy
from service.models.model_config import parse_model_config
from service.runner import kv_storage
from service.runner.kv_storage import ALIGNMENT, KvLayout, KvStorage
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


@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 20), (16, 64), (3, 128), (16, 80)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_of_eight_bits_is_one_piece_too(dtype, block_size, head_dim):
    """Its layers do not overlap, its heads begin where kernels look for them, and half of bf16 is nearly saved."""
    layout = KvLayout(3, block_size, 2, head_dim, dtype, is_fp8=True)
    plain = KvLayout(3, block_size, 2, head_dim, torch.bfloat16)
    heads = 3 * 2 * block_size * 2
    assert heads * (head_dim + 1) <= layout.block_bytes < heads * (head_dim + 1) + 16 * head_dim
    assert block_size == 1 or layout.block_bytes < 0.55 * plain.block_bytes
    kv = KvStorage(layout, 5, torch.device("cpu"))
    assert kv.blocks[0].nbytes == layout.block_bytes and kv.blocks[1].is_contiguous()
    halves = [half for layer in kv.layers for half in layer]
    views = [view.view(torch.uint8) for half in halves for view in half]
    for number, view in enumerate(views):
        assert view.stride(0) == layout.block_bytes and view.stride(0) % head_dim == 0
        assert view.dim() == 3 or (view.data_ptr() - kv.blocks.data_ptr()) % head_dim == 0
        view.fill_(number + 1)
    assert all((view == number + 1).all() for number, view in enumerate(views))
    kv.copy([BlockCopy(1, 4)])
    kv.blocks[1].zero_()
    assert all((view[4] == number + 1).all() and not view[1].any() for number, view in enumerate(views))


def test_ranks_share_a_blocks_heads_and_none_is_without_one():
    whole = KvLayout.of(CONFIG, 4, torch.bfloat16).block_bytes
    assert [KvLayout.of(CONFIG, 4, torch.bfloat16, size).block_bytes for size in (1, 2, 4)] == [
        whole,
        whole // 2,
        whole // 2,
    ]


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


def test_many_copies_are_made_piece_by_piece(monkeypatch):
    monkeypatch.setattr(kv_storage, "_COPIED_AT_ONCE", 2 * storage().layout.block_bytes)
    kv = storage(12)
    kv.blocks.copy_(torch.arange(12.0)[:, None, None, None, None, None].expand_as(kv.blocks))
    kv.copy([BlockCopy(i, 5 + i) for i in range(5)])
    assert kv.blocks[:, 1, 1, 3, 1, 15].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 10, 11]


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("num_bytes", [1, 300, 2000])
def test_lent_memory_is_aligned_and_in_its_blocks_alone(block_size: int, num_bytes: int):
    layout = KvLayout(1, block_size, 1, 20, torch.bfloat16)
    kv = KvStorage(layout, 64, torch.device("cpu"))
    num_blocks = layout.num_blocks_to_lend(num_bytes)
    for first in (0, 1, 2, 7):
        kv.blocks.zero_()
        memory = kv.memory_of(range(first, first + num_blocks), num_bytes)
        assert (memory.dtype, memory.shape) == (torch.uint8, (num_bytes,))
        assert memory.data_ptr() % ALIGNMENT == 0
        memory.fill_(1)
        assert int((kv.blocks.view(torch.uint8) != 0).sum()) == num_bytes
        assert not kv.blocks[:first].any() and not kv.blocks[first + num_blocks :].any()
