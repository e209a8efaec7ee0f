from __future__ import annotations

import torch

from service.layers.embedding import OutputHead
from service.layers.gated_mlp import GatedMlp
from service.layers.linear import Linear
from service.runner.choices.kept_sizes import kept_sizes
from service.runner.choices.timer import seconds_on_cpu
from service.runner.graph_sizes import GraphSize, graph_sizes


def layers():
    mlp, qkv, head = GatedMlp(16, 32, bias=False), Linear(16, 48), OutputHead(300, 16, None)
    for parameter in (p for module in (mlp, qkv, head) for p in module.parameters()):
        parameter.data = torch.randn(parameter.shape)
    return [qkv, mlp.gate_up, mlp.down, head], [mlp]


def test_a_size_that_another_one_nearby_outruns_has_no_graph():
    """Each number of tokens is timed once, by all products but the head's and the activation between them."""
    candidates, timed = graph_sizes(64, 512), []
    projections, mlps = layers()
    assert {GraphSize(24, 24), GraphSize(32, 32)} < set(candidates)

    def timer(launches):
        [num_rows] = {len(launch.args[0]) for launch in launches}
        timed.append(num_rows)
        products = [projections[0].own_product, mlps[0].gate, projections[2].own_product]
        assert [launch.func for launch in launches] == products
        assert [tuple(launch().shape) for launch in launches] == [(num_rows, n) for n in (48, 32, 16)]
        return 9.0 if num_rows == 24 else 1.0

    kept = kept_sizes(projections, mlps, candidates, timer)
    assert timed == sorted({size.num_tokens for size in candidates})
    assert kept == tuple(size for size in candidates if size != GraphSize(24, 24)), "in the order of capture"


def test_decodes_are_not_padded_to_sizes_with_prompts():
    projections, mlps = layers()
    decodes, mixed = GraphSize(64, 64), GraphSize(128, 64)
    timer = {64: 2.0, 128: 1.0}
    kept = kept_sizes(projections, mlps, [mixed, decodes], lambda launches: timer[len(launches[0].args[0])])
    assert kept == (mixed, decodes)


def test_a_real_choice_keeps_the_largest():
    candidates = graph_sizes(16, 64)
    assert kept_sizes(*layers(), candidates, seconds_on_cpu)[0] == candidates[0]


def test_without_candidates_nothing_is_timed():
    assert kept_sizes(*layers(), [], None) == ()
