"""A mixture of experts in the place of a block's MLP: a router sends each token to a few of many gated MLPs, and their
outputs are weighted and summed (Shazeer et al. 2017; Jiang et al. 2024).

Rows are sorted by expert, in blocks, so that it takes two grouped products (kernels/experts_gate_up.py,
experts_down.py). Routes and blocks are made on the device, and shapes depend only on the number of rows, so CUDA graphs
can hold them.

Each expert is divided along its intermediate size, like a dense MLP: a rank has the whole router, some of every
expert's gates and ups, and the same part of every down's inputs. It computes a partial sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernels.expert_blocks import expert_blocks
from kernels.expert_panels import ExpertPanels, ExpertWeights, expert_panels
from kernels.experts_down import experts_down
from kernels.experts_gate_up import Clamp, experts_gate_up
from kernels.grouped_product import ExpertWeight, grouped_config, tokens_of_each_config
from kernels.mxfp4 import GROUP, halves_apart, pack_scales
from kernels.quantized_weight import FP8
from kernels.route_to_experts import route_to_experts
from service.layers.experts_config import ExpertsConfig
from service.layers.gated_mlp import GatedMlp
from service.layers.layer import Layer
from service.layers.linear import Linear
from service.layers.linear_method import Normed, divided
from service.layers.packed_weight import stays_quantized
from service.layers.shard import Shard, even_share
from service.layers.tensor_parallel import TensorParallel
from service.layers.weight_storage import Destination, QuantizedRows, WeightStorage


class ExpertNames(NamedTuple):
    """Names of a block's tensors in a checkpoint: router, experts, and below an expert its three weights. is_stacked:
    the weights of all experts are one tensor, and so are their biases."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    is_stacked: bool = False


USUAL_NAMES = ExpertNames()
"""Those of most families, and of all families in transformers 5 itself."""


class ExpertParts(NamedTuple):
    """All experts' weights that make one product. names: below a block, without ".weight". out_features: of each.
    in_features: of all. shards: the part of each weight that a rank has; empty if it has all."""

    names: list[str]
    out_features: list[int]
    in_features: int
    shards: list[Shard]


class Substitute(NamedTuple):
    """A tensor that a checkpoint may have in place of others: where to copy it, and the names of the others."""

    tensor: Destination
    names: frozenset[str]


class MixtureOfExperts(Layer):
    """x [T, hidden_size] -> [T, hidden_size].

    gate_up    [E, 2 * I, H]  gates, then ups; alternating if checkpoints stack the experts
    down       [E, H, I]
    *_bias     [E, 2 * I], [E, H], or None
    *_scales   of quantized weights, as in `ExpertWeight` (kernels/grouped_product.py); else None
    *_zeros    likewise, if they have zero points
    storages   what quantized gate_up and down are read into; None for others, and once they are read
    """

    gate_up: nn.Parameter
    down: nn.Parameter
    gate_up_zeros: Tensor | None
    down_zeros: Tensor | None

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
        self.gate_up_zeros = self.down_zeros = None
        self.storages: nn.ModuleList | None = None
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
        self._panels: tuple[ExpertPanels, ExpertPanels] | None = None
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
            if parallel.rank > 0:  # rank 0 adds it
                self.down_bias = None

    def forward(self, x: Normed) -> Tensor:
        rows, config = divided(x), self.config
        routes = route_to_experts(self.router(rows), config.top_k, config.renormalizes)
        num_pairs = rows.shape[0] * config.top_k
        gate_up, down = self.weights
        tiles = grouped_config(num_pairs, config.num_experts, gate_up.form, rows.dtype)
        blocks = expert_blocks(routes.experts, config.num_experts, tiles.block_m)
        gated = experts_gate_up(rows, gate_up, blocks, tiles, is_interleaved=self.names.is_stacked, clamp=self.clamp)
        out = experts_down(gated, down, blocks, routes.weights, tiles)
        if self._parallel is not None:
            out = self._parallel.all_reduce(out)
        if self.shared is None or self.shared_gate is None:
            return out
        return out + torch.sigmoid(self.shared_gate(rows)) * self.shared(rows).value()

    @property
    def weights(self) -> tuple[ExpertWeights, ExpertWeights]:
        """gate_up and down in the form that they are multiplied in."""
        return self._panels or self._held_weights

    @property
    def _held_weights(self) -> tuple[ExpertWeight, ExpertWeight]:
        gate_up = ExpertWeight(self.gate_up, self.gate_up_scales, self.gate_up_bias, self.gate_up_zeros)
        return gate_up, ExpertWeight(self.down, self.down_scales, self.down_bias, self.down_zeros)

    def store_fp8(self) -> None:
        """Quantize the experts' weights to fp8 while they are read, with one scale per output feature. The router stays
        plain, and 4-bit experts stay as they are. Called before there is memory."""
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
    def parts(self) -> tuple[ExpertParts, ExpertParts]:
        """Those of gate_up and of down, in the order in which they lie."""
        size, kept, names, below = self._whole_size, self._kept, self.names, self.names.experts
        hidden_size, experts = self.router.in_features, range(self.config.num_experts)
        gates = [f"{below}.{expert}.{name}" for expert in experts for name in (names.gate, names.up)]
        downs = [f"{below}.{expert}.{names.down}" for expert in experts]
        rows, columns = ([Shard(dim, size, (kept,))] if self._parallel is not None else [] for dim in (0, 1))
        return (
            ExpertParts(gates, [len(kept)] * len(gates), hidden_size, rows * len(gates)),
            ExpertParts(downs, [hidden_size] * len(downs), len(kept), columns * len(downs)),
        )

    def store(self, gate_up: WeightStorage, down: WeightStorage, *, dequantized: bool) -> None:
        """Read the weights of `parts` into these storages instead of plain tensors. dequantized: they are made plain
        afterwards, for a device that multiplies by no other form. Called before there is memory."""
        self.storages = nn.ModuleList([gate_up, down])
        if not dequantized:
            for name in ("gate_up", "down"):
                delattr(self, name)

    def finish_reading(self, dtype: torch.dtype) -> None:
        """All weights have been read: convert them to what is multiplied by, for x of dtype."""
        if self.config.is_mxfp4:
            assert self.gate_up_scales is not None and self.down_scales is not None
            for of_experts in (self.gate_up, self.down):
                for numbers in of_experts.data:  # one by one: converting takes several times the memory
                    numbers.copy_(halves_apart(numbers))
            for scales_of_experts in (self.gate_up_scales, self.down_scales):
                scales_of_experts.data = pack_scales(scales_of_experts.data)
        if self.storages is None:
            return
        storages, self.storages = list(self.storages), None
        for name in ("gate_up", "down"):
            storage = storages.pop(0)
            assert isinstance(storage, WeightStorage)
            weight = storage.finished(dtype)
            by_expert = self.config.num_experts, -1
            if hasattr(self, name):
                plain = getattr(self, name)
                plain.data.copy_(weight.dequantized().view(plain.shape))
                continue
            scales = weight.scales.float() if weight.elements.dtype is FP8 else weight.scales
            delattr(self, f"{name}_scales")
            delattr(self, f"{name}_zeros")
            self.register_buffer(name, weight.elements.unflatten(0, by_expert))
            self.register_buffer(f"{name}_scales", scales.unflatten(0, by_expert))
            zeros = None if weight.zeros is None else weight.zeros.unflatten(0, by_expert)
            self.register_buffer(f"{name}_zeros", zeros)

    @property
    def num_made_plain(self) -> int:
        """Elements of plain weights that are still to be dequantized; the quantized form is in memory beside them."""
        if self.storages is not None:
            return self.gate_up.numel() + self.down.numel() if hasattr(self, "gate_up") else 0
        return sum(weight.numel() for weight in (self.gate_up, self.down) if weight.dtype is FP8)

    def num_made_plain_on(self, device: torch.device, dtype: torch.dtype) -> int:
        """`num_made_plain` of them on this device, where x has this dtype."""
        is_kept = device.type != "cpu" or self.stays_quantized(dtype)
        return 0 if self.storages is None and is_kept else self.num_made_plain

    @property
    def rows_of_each_kernel(self) -> list[int]:
        """Numbers of rows that together launch every kernel that any number of rows launches."""
        form = self.weights[0].form
        return tokens_of_each_config(self.config.num_experts, self.config.top_k, form, self.router.weight.dtype)

    def stays_quantized(self, dtype: torch.dtype) -> bool:
        """Whether a CPU multiplies x of dtype by such quantized experts directly."""
        return all(stays_quantized(each.out_features[-1], each.in_features, dtype) for each in self.parts)

    def fit_cpu(self, dtype: torch.dtype) -> None:
        """Convert quantized weights to what a CPU multiplies by: panels for its loops, or plain weights."""
        if self.gate_up_scales is not None and not (self.stays_quantized(dtype) and self._pack()):
            self._dequantize(dtype)

    def _pack(self) -> bool:
        gate_up, down = map(expert_panels, self._held_weights)
        if gate_up is None or down is None:  # some scale is NaN
            return False
        self._panels = gate_up, down
        for name in ("gate_up", "down"):
            delattr(self, name)
            setattr(self, f"{name}_scales", None)
            setattr(self, f"{name}_zeros", None)
        return True

    def _dequantize(self, dtype: torch.dtype) -> None:
        for name in ("gate_up", "down"):
            scales, zeros = getattr(self, f"{name}_scales"), getattr(self, f"{name}_zeros")
            if scales is None:
                continue
            values = getattr(self, name)
            weight = ExpertWeight(values, scales, None, zeros)
            shape = *values.shape[:2], weight.num_inputs
            plain = torch.empty(shape, dtype=dtype, device=values.device)
            for expert, of_expert in enumerate(plain):  # one by one: converting takes several times the memory
                of_expert.copy_(weight.of_expert(expert, dtype)[0])
            delattr(self, name)
            setattr(self, name, nn.Parameter(plain, requires_grad=False))
            setattr(self, f"{name}_scales", None)
            setattr(self, f"{name}_zeros", None)

    def checkpoint_tensors(self) -> dict[str, Destination]:
        """Views by their names below a block: writing to one fills its part of the weights."""
        tensors = self.router.checkpoint_tensors(self.names.router)
        if self.storages is not None:
            for storage, parts in zip(self.storages, self.parts, strict=True):
                assert isinstance(storage, WeightStorage)
                tensors |= storage.checkpoint_tensors(parts.names)
        else:
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
        """The parts that this rank has of `checkpoint_tensors` and `substitutes`, by their names below a block."""
        if self._parallel is None:
            return {}
        below, shared = self.names.experts, {}
        if self.shared is not None:
            expert = f"{self.names.router.rpartition('.')[0]}.shared_expert"
            shared = self.shared.gate_up.checkpoint_shards(f"{expert}.gate_proj", f"{expert}.up_proj")
            shared |= self.shared.down.checkpoint_shards(f"{expert}.down_proj")
        if self.storages is not None:
            for storage, parts in zip(self.storages, self.parts, strict=True):
                assert isinstance(storage, WeightStorage)
                shared |= storage.checkpoint_shards(parts.names, parts.shards)
            return shared
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
        """Gates and ups alternate."""
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
        """All experts' weights in one tensor, under the names that transformers 5 has in memory."""
        if self.names.is_stacked or self.storages is not None:
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
        """Where all experts' gates and ups go, and where their downs go."""
        if self.gate_up.dtype is FP8 and self.gate_up_scales is not None and self.down_scales is not None:
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
