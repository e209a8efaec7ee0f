"""Whatever the blocks, and wherever they are: each row of A and of B transposed is found, whole, in one of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ConfigError
from service.layers.shard import Shard
from service.lora.adapter_folder import AdapterSite, AdapterWeights, SiteWeights
from service.lora.adapter_layout import AdapterLayout

SITES = {"q": AdapterSite(12, 20), "k": AdapterSite(12, 7), "down": AdapterSite(33, 12)}
MAX_RANK = 6


@st.composite
def scenes(draw):
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    layout = AdapterLayout(SITES, MAX_RANK, draw(st.integers(40, 300)) // 8 * 8, dtype)
    ranks = draw(st.dictionaries(st.sampled_from(sorted(SITES)), st.integers(1, MAX_RANK), min_size=1))
    weights = {
        name: SiteWeights(
            torch.randn(rank, SITES[name].in_features).to(dtype),
            torch.randn(SITES[name].out_features, rank).to(dtype),
            draw(st.floats(0.1, 4)),
        )
        for name, rank in ranks.items()
    }
    return layout, weights


@given(scenes(), st.randoms(use_true_random=False))
def test_every_row_is_found_in_the_blocks_that_the_adapter_was_given(scene, chance):
    layout, weights = scene
    packed = layout.pack(AdapterWeights(weights, "ab"), pinned=False)
    num_blocks = len(packed.blocks)
    assert num_blocks <= layout.most_blocks
    block_ids = tuple(chance.sample(range(3 * num_blocks), num_blocks))
    pool = torch.full((3 * num_blocks, layout.block_elements), torch.nan, dtype=layout.dtype)
    pool[list(block_ids)] = packed.blocks
    a_offsets, b_offsets = (packed.offsets(places, block_ids) for places in (packed.a_places, packed.b_places))
    taken = set()
    for index, (name, site) in enumerate(SITES.items()):
        rank = int(packed.ranks[index])
        assert rank == (len(weights[name].a) if name in weights else 0)
        for row in range(rank):
            for matrix, offset, size in (
                (weights[name].a, a_offsets[index, row], site.in_features),
                (weights[name].b.T, b_offsets[index, row], site.out_features),
            ):
                assert offset % layout.alignment == 0
                assert offset // layout.block_elements == (offset + size - 1) // layout.block_elements
                assert torch.equal(pool.view(-1)[offset : offset + size], matrix[row])
                places = set(range(offset, offset + size))
                assert taken.isdisjoint(places)
                taken |= places
        assert name not in weights or packed.scales[index] == np.float32(weights[name].scale)


def test_an_adapter_of_everything_takes_the_most_blocks():
    layout = AdapterLayout(SITES, MAX_RANK, 64, torch.float32)
    whole = {
        name: SiteWeights(torch.ones(MAX_RANK, site.in_features), torch.ones(site.out_features, MAX_RANK), 1.0)
        for name, site in SITES.items()
    }
    assert len(layout.pack(AdapterWeights(whole, ""), pinned=False).blocks) == layout.most_blocks


def test_blocks_that_hold_no_row_are_refused_naming_the_setting():
    with pytest.raises(ConfigError, match=r"block-size: .* a block must hold at least 33 elements"):
        AdapterLayout(SITES, MAX_RANK, 32, torch.float32)


def test_ranks_pack_equal_blocks_whose_parts_make_the_whole():
    """Of a module that is divided by its outputs a rank has rows of B, by its inputs columns of A."""
    weights = {
        "q": SiteWeights(torch.randn(3, 12), torch.randn(20, 3), 0.5),
        "down": SiteWeights(torch.randn(2, 33), torch.randn(12, 2), 2.0),
    }
    outputs = (range(4), range(10, 16)), (range(4, 10), range(16, 20))
    inputs = (range(16),), (range(16, 33),)
    sites = [
        {"q": AdapterSite(12, 20, Shard(0, 20, rows)), "down": AdapterSite(33, 12, Shard(1, 33, columns))}
        for rows, columns in zip(outputs, inputs, strict=True)
    ]
    whole = torch.zeros(20, 12)
    halves = []
    for mine, rows in zip(sites, outputs, strict=True):
        own = {name: site.own(weights[name]) for name, site in mine.items()}
        places = [row for part in rows for row in part]
        whole[places] = own["q"].b @ own["q"].a
        halves.append(own["down"].b @ own["down"].a)
        for name, site in mine.items():
            assert own[name].a.shape[1] == site.own_in_features
            assert own[name].b.shape[0] == site.own_out_features
    torch.testing.assert_close(whole, weights["q"].b @ weights["q"].a)
    torch.testing.assert_close(torch.cat(halves, 1), weights["down"].b @ weights["down"].a)
    layouts = [AdapterLayout(mine, MAX_RANK, 40, torch.float32) for mine in sites]
    packed = [layout.pack(AdapterWeights(weights, ""), pinned=False) for layout in layouts]
    assert packed[0].ranks.tolist() == packed[1].ranks.tolist() == [3, 2]
    for each, mine in zip(packed, sites, strict=True):
        flat, own = each.blocks.view(-1), mine["down"].own(weights["down"])
        for row in range(2):
            begin = each.a_places[1, row]
            assert torch.equal(flat[begin : begin + own.a.shape[1]], own.a[row])
