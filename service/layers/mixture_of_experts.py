"""A mixture of experts in the place of a block's MLP: a router sends each token to a few of many gated MLPs, and their
outputs are weighted and summed (Shazeer et al. 2017; Jiang et al. 2024).

Rows sorted by expert, in blocks, make two grouped products of it (kernels/experts_gate_up.py, experts_down.py). Routes
and blocks are made on the device and shapes depend on the number of rows alone, so CUDA graphs hold them.

Each expert's weights divide at its intermediate size, as those of a dense MLP do: a shard of a layer has the router,
some of every expert's gates and ups and the same part of every down's inputs, and gives a partial sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernels.expert_blocks import expert_blocks
from kernels.experts_down import experts_down
from kernels.experts_gate_up import Clamp, experts_gate_up
from kernels.grouped_product import ExpertWeight, grouped_config, tokens_of_each_config
from kernels.mxfp4 import GROUP
from kernels.quantized_weight import FP8
from kernels.route_to_experts import route_to_experts
from service.layers.experts_config import ExpertsConfig
from service.layers.gated_mlp import GatedMlp
from service.layers.layer import Layer
from service.layers.linear import Linear
from service.layers.linear_method import Normed, divided
from service.layers.shard import Shard, even_share
from service.layers.tensor_parallel import TensorParallel
from service.layers.weight_storage import Destination, QuantizedRows


class ExpertNames(NamedTuple):
    """Of a block's tensors in a checkpoint: router and experts, and below an expert its three weights. is_stacked: all
    experts' in one, and their biases."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    is_stacked: bool = False


USUAL_NAMES = ExpertNames()
"""Of most families, and of all in transformers 5 itself."""


class Substitute(NamedTuple):
    """What a checkpoint may hold in the place of other tensors: where it is to be copied to, and their names."""

    tensor: Destination
    names: frozenset[str]


class MixtureOfExperts(Layer):
    """x [T, hidden_size] -> [T, hidden_size].

    gate_up    [E, 2 * I, H]  gates, then ups; in turn, if the names say that checkpoints stack them
    down       [E, H, I]
    *_bias     [E, 2 * I], [E, H], or None
    *_scales   of weights of fewer bits, which are then as an `ExpertWeight` has them (kernels/grouped_product.py); else
               None
    """

    gate_up: nn.Parameter
    down: nn.Parameter

    def __init__(self, hidden_size: int, config: ExpertsConfig, names: ExpertNames) -> None:
        super().__init__()
        self.config = config
        self.names = names
        self.clamp = None if config.clamp_limit is None else Clamp(config.clamp_limit, config.clamp_alpha)
        num_experts, size = config.num_experts, config.intermediate_size
        self.router = Linear(hidden_size, num_experts, bias=config.has_bias)
        divisor = 2 if config.is_mxfp4 else 1
        self.gate_up = _weight(config.is_mxfp4, num_experts, 2 * size, hidden_size // divisor)
        self.down = _weight(config.is_mxfp4, num_experts, hidden_size, size // divisor)
        self.gate_up_scales = self.down_scales = self.gate_up_bias = self.down_bias = None
        if config.is_mxfp4:
            self.gate_up_scales = _weight(True, num_experts, 2 * size, hidden_size // GROUP)
            self.down_scales = _weight(True, num_experts, hidden_size, size // GROUP)
        if config.has_bias:
            self.gate_up_bias = _weight(False, num_experts, 2 * size)
            self.down_bias = _weight(False, num_experts, hidden_size)
        self.shared = self.shared_gate = None
        if config.shared_size is not None:
            self.shared = GatedMlp(hidden_size, config.shared_size, bias=False)
            self.shared_gate = Linear(hidden_size, 1)
        self._parallel: TensorParallel | None = None
        self._kept, self._whole_size = range(size), size

    def shard(self, parallel: TensorParallel) -> None:
        """Every expert's intermediate size is divided; router and routes are the same on every rank."""
        size = self.config.intermediate_size
        kept = even_share(size, parallel)
        assert not self.config.is_mxfp4 or len(kept) % GROUP == 0
        self._parallel, self._kept = parallel, kept
        self.config = replace(self.config, intermediate_size=len(kept))
        self.gate_up = _part(self.gate_up, 1, 2 * len(kept))
        self.down = _part(self.down, 2, self.down.shape[2] * len(kept) // size)
        if self.gate_up_scales is not None and self.down_scales is not None:
            self.gate_up_scales = _part(self.gate_up_scales, 1, 2 * len(kept))
            self.down_scales = _part(self.down_scales, 2, len(kept) // GROUP)
        if self.gate_up_bias is not None:
            self.gate_up_bias = _part(self.gate_up_bias, 1, 2 * len(kept))
            if parallel.rank > 0:  # the first one adds it
                self.down_bias = None

    def forward(self, x: Normed) -> Tensor:
        rows, config = divided(x), self.config
        routes = route_to_experts(self.router(rows), config.top_k, config.renormalizes)
        num_pairs = rows.shape[0] * config.top_k
        tiles = grouped_config(num_pairs, config.num_experts, is_quantized=self.gate_up_scales is not None)
        blocks = expert_blocks(routes.experts, config.num_experts, tiles.block_m)
        gate_up = ExpertWeight(self.gate_up, self.gate_up_scales, self.gate_up_bias)
        gated = experts_gate_up(rows, gate_up, blocks, tiles, is_interleaved=self.names.is_stacked, clamp=self.clamp)
        down = ExpertWeight(self.down, self.down_scales, self.down_bias)
        out = experts_down(gated, down, blocks, routes.weights, tiles)
        if self._parallel is not None:
            out = self._parallel.all_reduce(out)
        if self.shared is None or self.shared_gate is None:
            return out
        return out + torch.sigmoid(self.shared_gate(rows)) * self.shared(rows).value()

    def store_fp8(self) -> None:
        """Have the experts' weights quantized while they are read, each output feature with a scale of its own. The
        router stays, and what has four bits already. Before there is memory."""
        if self.gate_up_scales is not None:
            return
        for name in ("gate_up", "down"):
            plain = getattr(self, name)
            delattr(self, name)
            delattr(self, f"{name}_scales")
            self.register_buffer(name, torch.empty(plain.shape, dtype=FP8, device=plain.device))
            scales = torch.empty(*plain.shape[:2], 1, dtype=torch.float32, device=plain.device)
            self.register_buffer(f"{name}_scales", scales)

    @property
    def num_quantized(self) -> int:
        """Weights of eight bits."""
        return sum(weight.numel() for weight in (self.gate_up, self.down) if weight.dtype is FP8)

    @property
    def rows_of_each_kernel(self) -> list[int]:
        """Numbers of rows that between them launch every kernel that any number does."""
        return tokens_of_each_config(self.config.num_experts, self.config.top_k)

    def dequantize(self, dtype: torch.dtype) -> None:
        """Give up fewer bits for plain weights: for a device that has no kernel for them."""
        if self.gate_up_scales is not None and self.down_scales is not None:
            for name, scales in (("gate_up", self.gate_up_scales), ("down", self.down_scales)):
                weight = ExpertWeight(getattr(self, name), scales)
                shape = *weight.values.shape[:2], weight.num_inputs
                plain = torch.empty(shape, dtype=dtype, device=scales.device)
                for expert, of_expert in enumerate(plain):  # one by one: the way there takes several times as much
                    of_expert.copy_(weight.of_expert(expert, dtype)[0])
                delattr(self, name)
                setattr(self, name, nn.Parameter(plain, requires_grad=False))
            self.gate_up_scales = self.down_scales = None

    def checkpoint_tensors(self) -> dict[str, Destination]:
        """Views by their names below a block: writing to one fills its part of the weights."""
        tensors = self.router.checkpoint_tensors(self.names.router)
        tensors |= dict(self._stacked_tensors() if self.names.is_stacked else self._tensors_by_expert())
        if self.shared is not None and self.shared_gate is not None:
            below = self.names.router.rpartition(".")[0]
            tensors |= self.shared.gate_up.checkpoint_tensors(
                f"{below}.shared_expert.gate_proj", f"{below}.shared_expert.up_proj"
            )
            tensors |= self.shared.down.checkpoint_tensors(f"{below}.shared_expert.down_proj")
            tensors |= self.shared_gate.checkpoint_tensors(f"{below}.shared_expert_gate")
        return tensors

    def checkpoint_shards(self) -> dict[str, Shard]:
        """Of those of `checkpoint_tensors` and of `substitutes`, by their names below a block."""
        if self._parallel is None:
            return {}
        below, shared = self.names.experts, {}
        if self.shared is not None:
            expert = f"{self.names.router.rpartition('.')[0]}.shared_expert"
            shared = self.shared.gate_up.checkpoint_shards(f"{expert}.gate_proj", f"{expert}.up_proj")
            shared |= self.shared.down.checkpoint_shards(f"{expert}.down_proj")
        if self.names.is_stacked:
            return shared | {f"{below}.{name}": shard for name, shard in self._stacked_shards()}
        size, kept = self._whole_size, self._kept
        rows, columns = Shard(0, size, (kept,)), Shard(1, size, (kept,))
        both = kept, range(size + kept.start, size + kept.stop)
        return {
            **shared,
            f"{USUAL_NAMES.experts}.gate_up_proj": Shard(1, 2 * size, both),
            f"{USUAL_NAMES.experts}.down_proj": Shard(2, size, (kept,)),
            **{
                f"{below}.{expert}.{name}.weight": shard
                for expert in range(self.config.num_experts)
                for name, shard in ((self.names.gate, rows), (self.names.up, rows), (self.names.down, columns))
            },
        }

    def _stacked_shards(self) -> Iterator[tuple[str, Shard]]:
        """Gates and ups stand in turn."""
        size, kept = self._whole_size, self._kept
        pairs = range(2 * kept.start, 2 * kept.stop)
        if self.config.is_mxfp4:
            groups = range(kept.start // GROUP, kept.stop // GROUP)
            for kind in ("blocks", "scales"):
                yield f"gate_up_proj_{kind}", Shard(1, 2 * size, (pairs,))
                yield f"down_proj_{kind}", Shard(2, size // GROUP, (groups,))
        else:
            yield "gate_up_proj", Shard(2, 2 * size, (pairs,))
            yield "down_proj", Shard(1, size, (kept,))
        yield "gate_up_proj_bias", Shard(1, 2 * size, (pairs,))
        if self.down_bias is None:
            yield "down_proj_bias", Shard(1, self.down.shape[1], ())

    def substitutes(self) -> Mapping[str, Substitute]:
        """By other names: all experts' weights in one, as transformers 5 has them in memory."""
        if self.names.is_stacked:
            return {}
        by_expert, (gate_up, down) = dict(self._tensors_by_expert()), self._places()
        downs = frozenset(name for name in by_expert if name.endswith(f".{self.names.down}.weight"))
        found = {
            f"{USUAL_NAMES.experts}.gate_up_proj": Substitute(gate_up, frozenset(by_expert) - downs),
            f"{USUAL_NAMES.experts}.down_proj": Substitute(down, downs),
        }
        if self.names.router != USUAL_NAMES.router:
            for name, tensor in self.router.checkpoint_tensors(self.names.router).items():
                found[name.replace(self.names.router, USUAL_NAMES.router)] = Substitute(tensor, frozenset({name}))
        return found

    def _places(self) -> tuple[Tensor | QuantizedRows, Tensor | QuantizedRows]:
        """Where all experts' gates and ups go, and their downs."""
        if self.num_quantized and self.gate_up_scales is not None and self.down_scales is not None:
            return QuantizedRows(self.gate_up, self.gate_up_scales), QuantizedRows(self.down, self.down_scales)
        return self.gate_up.detach(), self.down.detach()

    def _tensors_by_expert(self) -> Iterator[tuple[str, Destination]]:
        (gate_up, down), size = self._places(), self.config.intermediate_size
        for expert in range(self.config.num_experts):
            below = f"{self.names.experts}.{expert}"
            yield f"{below}.{self.names.gate}.weight", gate_up[expert, :size]
            yield f"{below}.{self.names.up}.weight", gate_up[expert, size:]
            yield f"{below}.{self.names.down}.weight", down[expert]

    def _stacked_tensors(self) -> Iterator[tuple[str, Destination]]:
        for name, place, weight, scales, bias in (
            ("gate_up_proj", self._places()[0], self.gate_up, self.gate_up_scales, self.gate_up_bias),
            ("down_proj", self._places()[1], self.down, self.down_scales, self.down_bias),
        ):
            below = f"{self.names.experts}.{name}"
            if scales is None or isinstance(place, QuantizedRows):
                yield below, place.mT
            else:
                yield f"{below}_blocks", weight.detach().unflatten(2, (-1, GROUP // 2))
                yield f"{below}_scales", scales.detach()
            if bias is not None:
                yield f"{below}_bias", bias.detach()
            elif self.config.has_bias:  # another rank adds it
                yield f"{below}_bias", torch.empty(self.config.num_experts, 0, device="meta")


def _part(whole: Tensor, dim: int, size: int) -> nn.Parameter:
    shape = *whole.shape[:dim], size, *whole.shape[dim + 1 :]
    return nn.Parameter(whole.new_empty(shape), requires_grad=False)


def _weight(is_mxfp4: bool, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=torch.uint8 if is_mxfp4 else None), requires_grad=False)
