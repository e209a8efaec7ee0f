"""A mixture of experts against its formula, token by token; the weights by the names of every family's checkpoints."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.mxfp4 import dequantize_mxfp4, halves_apart
from service.layers.experts_config import ExpertsConfig
from service.layers.mixture_of_experts import USUAL_NAMES, ExpertNames, MixtureOfExperts
from tests.layers.test_shard import ranks

HIDDEN, SIZE, NUM_EXPERTS = 32, 64, 5
GPT_OSS_NAMES = ExpertNames(router="mlp.router", is_stacked=True)
MIXTRAL_NAMES = ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2")


def made(names=USUAL_NAMES, **options):
    layer = MixtureOfExperts(HIDDEN, ExpertsConfig((True,), NUM_EXPERTS, 2, SIZE, **options), names)
    for tensor in layer.checkpoint_tensors().values():
        if tensor.is_floating_point():
            tensor.normal_(0, 0.2)
        else:
            tensor.random_(100, 124)
    return layer


def expected(layer, x, expert_output):
    probabilities = F.linear(x, layer.router.weight, layer.router.bias).softmax(-1)
    rows = []
    for row, each in zip(x, probabilities, strict=True):
        weights, experts = each.topk(layer.config.top_k)
        weights = weights / weights.sum() if layer.config.renormalizes else weights
        rows.append(sum(w * expert_output(e, row) for w, e in zip(weights, experts.tolist(), strict=True)))
    return torch.stack(rows)


@pytest.mark.pairwise
@pytest.mark.parametrize("names", [USUAL_NAMES, MIXTRAL_NAMES], ids=["usual", "Mixtral's"])
@pytest.mark.parametrize("renormalizes", [True, False])
@pytest.mark.parametrize("num_rows", [1, 40])
def test_follows_the_formula(num_rows, renormalizes, names):
    layer, x = made(names, renormalizes=renormalizes), torch.randn(num_rows, HIDDEN)
    tensors = layer.checkpoint_tensors()

    def expert_output(expert, row):
        gate, up, down = (
            tensors[f"{names.experts}.{expert}.{name}.weight"] for name in (names.gate, names.up, names.down)
        )
        return down @ (F.silu(gate @ row) * (up @ row))

    torch.testing.assert_close(layer(x), expected(layer, x, expert_output))


def test_a_shared_expert_has_a_gate_of_its_own():
    plain, layer, x = made(), made(shared_size=24), torch.randn(7, HIDDEN)
    routed = {name: t for name, t in layer.checkpoint_tensors().items() if "shared" not in name}
    for name, tensor in plain.checkpoint_tensors().items():
        tensor.copy_(routed[name])
    tensors = layer.checkpoint_tensors()
    gate, up, down = (tensors[f"mlp.shared_expert.{name}_proj.weight"] for name in ("gate", "up", "down"))
    shared = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    opened = torch.sigmoid(F.linear(x, tensors["mlp.shared_expert_gate.weight"]))
    torch.testing.assert_close(layer(x), plain(x) + opened * shared)


@pytest.mark.parametrize("is_mxfp4", [False, True], ids=["plain", "mxfp4"])
def test_experts_of_gpt_oss(is_mxfp4):
    """Stacked, [in, out] if plain, gates and ups in turn, with biases; the same once four bits are given up."""
    layer, x = (
        made(GPT_OSS_NAMES, clamp_limit=0.3, clamp_alpha=1.7, has_bias=True, is_mxfp4=is_mxfp4),
        torch.randn(9, HIDDEN),
    )
    t = {name.removeprefix("mlp.experts."): tensor for name, tensor in layer.checkpoint_tensors().items()}
    if is_mxfp4:
        for name in ("gate_up_proj", "down_proj"):
            numbers = halves_apart(t[f"{name}_blocks"].flatten(2))
            values = dequantize_mxfp4(numbers, t[f"{name}_scales"], torch.float32)
            t[name] = values.transpose(1, 2)
        layer.finish_reading(torch.float32)

    def expert_output(expert, row):
        gate_up = row @ t["gate_up_proj"][expert] + t["gate_up_proj_bias"][expert]
        gate, up = gate_up[::2].clamp(max=0.3), gate_up[1::2].clamp(-0.3, 0.3)
        return ((up + 1) * gate * torch.sigmoid(1.7 * gate)) @ t["down_proj"][expert] + t["down_proj_bias"][expert]

    want = expected(layer, x, expert_output)
    torch.testing.assert_close(layer(x), want)
    layer.fit_cpu(torch.float32)
    torch.testing.assert_close(layer(x), want)
    assert layer.gate_up.dtype == torch.float32 and layer.gate_up_scales is None


@pytest.mark.parametrize("names", [USUAL_NAMES, MIXTRAL_NAMES], ids=["usual", "Mixtral's"])
def test_a_stacked_tensor_stands_for_those_of_all_experts(names):
    layer, other = made(names), made(names)
    substitutes = layer.substitutes()
    replaced = [name for each in substitutes.values() for name in each.names]
    assert len(replaced) == len(set(replaced)) and set(replaced) <= layer.checkpoint_tensors().keys()
    theirs = other.substitutes()
    for name, (tensor, _) in substitutes.items():
        tensor.copy_(theirs[name].tensor)
    for name, tensor in layer.checkpoint_tensors().items():
        assert torch.equal(tensor, other.checkpoint_tensors()[name]) == (name in replaced)


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (USUAL_NAMES, {}),
        (MIXTRAL_NAMES, {}),
        (GPT_OSS_NAMES, {"clamp_limit": 0.3, "clamp_alpha": 1.7, "has_bias": True}),
        (GPT_OSS_NAMES, {"clamp_limit": 0.3, "clamp_alpha": 1.7, "has_bias": True, "is_mxfp4": True}),
    ],
    ids=["usual", "Mixtral's", "gpt-oss's", "mxfp4"],
)
def test_each_expert_divides_at_its_intermediate_size(names, options):
    """The ranks' outputs add up to the whole's, by whichever names their parts were read."""
    layer, x = made(names, **options), torch.randn(6, HIDDEN)
    stored = layer.checkpoint_tensors()
    stacked = {name: tensor for name, (tensor, _) in layer.substitutes().items()}
    for held in (stored, stored | stacked) if stacked else (stored,):
        total = torch.zeros(6, HIDDEN)
        for rank in ranks(2):
            part = MixtureOfExperts(HIDDEN, ExpertsConfig((True,), NUM_EXPERTS, 2, SIZE, **options), names)
            part.shard(rank)
            places = part.checkpoint_tensors()
            if held is not stored:
                places |= {name: tensor for name, (tensor, _) in part.substitutes().items()}
            shards = part.checkpoint_shards()
            for name, place in places.items():
                if place.numel():
                    place.copy_(shards[name].of(held[name]) if name in shards else held[name])
                assert (shards[name].whole_shape(place.shape) if name in shards else place.shape) == held[name].shape
            total += part(x)
        torch.testing.assert_close(total, layer(x))


@pytest.mark.parametrize("names", [USUAL_NAMES, GPT_OSS_NAMES], ids=["by expert", "stacked"])
def test_experts_of_eight_bits_are_made_of_plain_ones_as_they_come(names):
    """Each row of a weight with a scale of its own; the router stays."""
    plain, layer, x = made(names), MixtureOfExperts(HIDDEN, made(names).config, names), torch.randn(9, HIDDEN)
    layer.store_fp8()
    places, tensors = layer.checkpoint_tensors(), plain.checkpoint_tensors()
    assert {name: place.shape for name, place in places.items()} == {name: t.shape for name, t in tensors.items()}
    for name, place in places.items():
        place.copy_(tensors[name])
    assert layer.num_made_plain == 3 * NUM_EXPERTS * HIDDEN * SIZE
    for weight, scales, exact in (
        (layer.gate_up, layer.gate_up_scales, plain.gate_up),
        (layer.down, layer.down_scales, plain.down),
    ):
        error = (weight.float() * scales - exact).norm() / exact.norm()
        assert 0.01 < error < 0.03, "that of three bits of mantissa"
    of_eight_bits = layer(x)
    assert (of_eight_bits - plain(x)).norm() < 0.06 * plain(x).norm()
    layer.fit_cpu(torch.float32)
    assert layer.num_made_plain == 0 and layer.gate_up.dtype == torch.float32
    torch.testing.assert_close(layer(x), of_eight_bits)
