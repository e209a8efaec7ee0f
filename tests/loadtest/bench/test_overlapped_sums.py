from __future__ import annotations

import pytest
import torch

from loadtest.bench.overlapped_sums import Layer, computed, part_of
from tests.ranks import Ranks


def streams(parallel):
    """Behind two small layers: the sums in turn with products, and beside them."""
    torch.manual_seed(parallel.rank)
    shapes = {"qkv": (24, 16), "output": (16, 8), "gate_up": (64, 16), "down": (16, 32)}
    weights = [{name: torch.randn(shape) / shape[1] for name, shape in shapes.items()} for _ in range(2)]
    generator = torch.Generator().manual_seed(9)
    x, attended = torch.randn(6, 16, generator=generator), torch.randn(6, 8)
    answers = []
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        for overlap_tokens in (0, 1):
            patch.setattr(parallel, "overlap_tokens", overlap_tokens)
            answers.append(computed([Layer(parallel, each) for each in weights], x, attended))
    return answers


def test_what_is_timed_computes_the_same_with_sums_beside_products(two_ranks: Ranks):
    answers = two_ranks.run(streams)
    for in_turn, beside in answers:
        torch.testing.assert_close(beside, in_turn)
        assert torch.equal(in_turn, answers[0][0])


def test_a_rank_has_its_part_of_inputs_or_of_outputs():
    assert {name: part_of(name, 2) for name in ("qkv", "output", "gate_up", "down")} == {
        "qkv": (3072, 4096),
        "output": (4096, 2048),
        "gate_up": (14336, 4096),
        "down": (4096, 7168),
    }
