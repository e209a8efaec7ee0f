from __future__ import annotations

import pytest
import torch

from service.layers.embedding import OutputHead, PositionEmbedding, TokenEmbedding
from service.layers.packed_weight import WeightForm


@pytest.fixture
def embedding():
    module = TokenEmbedding(11, 8)
    module.weight.data = torch.randn(11, 8)
    return module


def test_looks_up_rows(embedding):
    ids = torch.tensor([3, 0, 10, 3])
    assert torch.equal(embedding(ids), embedding.weight[ids])


@pytest.mark.parametrize("offset", [0, 2])
def test_positions_begin_at_the_offset(offset):
    positions = PositionEmbedding(5, 8, offset)
    positions.weight.data = torch.randn(5 + offset, 8)
    assert torch.equal(positions(torch.tensor([4, 0])), positions.weight[[4 + offset, offset]])


@pytest.mark.parametrize("packs", [False, True])
def test_tied_head_reads_the_embedding(embedding, packs):
    head = OutputHead(11, 8, embedding)
    assert list(head.parameters()) == []
    hidden = torch.randn(4, 8)
    want = hidden @ embedding.weight.T
    if packs:
        head.pack(WeightForm.BOTH)
    torch.testing.assert_close(head(hidden), want)
    assert torch.equal(embedding(torch.tensor([2]))[0], embedding.weight[2])


@pytest.mark.parametrize("packs", [False, True])
def test_head_of_its_own(packs):
    head = OutputHead(11, 8, None)
    head.weight.data = torch.randn(11, 8)
    hidden = torch.randn(4, 8)
    want = hidden @ head.weight.T
    if packs:
        head.pack(WeightForm.BOTH)
    torch.testing.assert_close(head(hidden), want)


def test_tie_survives_materialization(embedding):
    """The weight is found at every call, not remembered: memory may be given to it later."""
    head = OutputHead(11, 8, embedding)
    embedding.weight.data = torch.ones(11, 8)
    torch.testing.assert_close(head(torch.ones(1, 8)), torch.full((1, 11), 8.0))
