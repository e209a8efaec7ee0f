"""Whatever the blocks, and wherever they are: each row of A and of B transposed is found, whole, in one of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ConfigError
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
    with pytest.raises(ConfigError, match="block-size: adapters need blocks of 33 numbers at least"):
        AdapterLayout(SITES, MAX_RANK, 32, torch.float32)
