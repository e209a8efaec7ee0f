"""Our kernels for experts behind transformers' experts interface (`ExpertsInterface.register`). Experts of an unusual
form are computed by transformers' own function."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.integrations.moe import ExpertsInterface, _default_apply_gate, grouped_mm_experts_forward

from kernels.expert_blocks import expert_blocks
from kernels.experts_down import experts_down
from kernels.experts_gate_up import experts_gate_up
from kernels.grouped_product import ExpertWeight, grouped_config
from service.layers.shard import Shard, even_share
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.models.transformers_backend.attention import IMPLEMENTATION

_PARALLEL = "headrace_parallel"
_UNUSUAL = ("has_bias", "is_transposed", "has_post_expert_norm")
_USUAL = ("has_gate", "is_concatenated")


def register_experts() -> None:
    """Register the function with transformers. May be called again."""
    ExpertsInterface.register(IMPLEMENTATION, _experts)


def _experts(module: nn.Module, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    """x [T, hidden_size]; expert_ids, weights [T, k]: each token's experts and their weights -> [T, hidden_size]. On
    the meta device there is no grouped product in every dtype, so only the shape is returned."""
    if x.is_meta:
        return x.new_empty(x.shape)
    if not is_computed_here(module):
        return grouped_mm_experts_forward(module, x, expert_ids, weights)
    gate_up, down = cast(Tensor, module.gate_up_proj), cast(Tensor, module.down_proj)
    num_experts = gate_up.shape[0]
    tiles = grouped_config(expert_ids.numel(), num_experts)
    blocks = expert_blocks(expert_ids.int().contiguous(), num_experts, tiles.block_m)
    gated = experts_gate_up(x, ExpertWeight(gate_up, None, None), blocks, tiles)
    out = experts_down(gated, ExpertWeight(down, None, None), blocks, weights.float().contiguous(), tiles)
    parallel: TensorParallel = getattr(module, _PARALLEL, ALONE)
    return parallel.all_reduce(out)


def inner_size(module: nn.Module) -> int:
    """Intermediate size of the experts that are computed here."""
    return cast(Tensor, module.down_proj).shape[2]


def shard_experts(module: nn.Module, parallel: TensorParallel) -> dict[str, Shard]:
    """Keep this rank's part of each expert that is computed here; their outputs are summed over the ranks. Called
    before there is memory. Returns the part of each parameter."""
    size = inner_size(module)
    kept = even_share(size, parallel)
    both = kept, range(size + kept.start, size + kept.stop)
    gate_up, down = cast(Tensor, module.gate_up_proj), cast(Tensor, module.down_proj)
    num_experts, _, hidden_size = gate_up.shape
    for name, shape in (
        ("gate_up_proj", (num_experts, 2 * len(kept), hidden_size)),
        ("down_proj", (num_experts, hidden_size, len(kept))),
    ):
        module.register_parameter(name, nn.Parameter(down.new_empty(shape), requires_grad=False))
    setattr(module, _PARALLEL, parallel)
    return {"gate_up_proj": Shard(1, 2 * size, both), "down_proj": Shard(2, size, (kept,))}


def is_computed_here(module: nn.Module) -> bool:
    """Whether these experts have the usual form: silu(gate) * up, gates before ups, [E, out, in], without biases."""
    return (
        hasattr(module, "gate_up_proj")
        and hasattr(module, "down_proj")
        and not any(getattr(module, name, False) for name in _UNUSUAL)
        and all(getattr(module, name, True) for name in _USUAL)
        and getattr(type(module), "_apply_gate", None) is _default_apply_gate
        and type(getattr(module, "act_fn", None)) is type(ACT2FN["silu"])
    )
