"""What of a model's layers is computed by our fused operations, found by trials: attention with its rotary positions,
and whole layers. It is all layers or none; what is not recognized runs as transformers' own operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from service.layers.add_norm_fusion import AddNormFusion
from service.layers.linear import NamedLinear
from service.models.transformers_backend.attention import CurrentStep
from service.models.transformers_backend.packed_attention import PackedAttention, PackedForward, packed_attentions
from service.models.transformers_backend.pre_norm_layers import PreNormLayers, linears_after_attention, usual_layers
from service.models.transformers_backend.probe import NUM_TOKENS, ModuleCall, Probe
from service.models.transformers_backend.rotary_tables import Initialize, RotaryTables, can_be_tables
from service.models.transformers_backend.trial import ROTARY

logger = logging.getLogger("headrace")

DividesHeads = Callable[[Sequence[str], str], bool]
"""Whether ranks divide attention by heads, given the paths of its projections and of its output."""


@dataclass(frozen=True, slots=True)
class LayerFusion:
    """What was fused. has_attention: of all layers. layers: None: they are transformers'. narrowed: ids of linears that
    get only the rows that are read, in the last layer."""

    has_attention: bool = False
    layers: PreNormLayers | None = None
    narrowed: frozenset[int] = frozenset()

    @property
    def narrows(self) -> bool:
        return self.layers is not None

    def keep(self, kept: range) -> None:
        if self.layers is not None:
            self.layers.keep(kept)

    def add_norm_fusions(self) -> Sequence[AddNormFusion]:
        return () if self.layers is None else self.layers.add_norm_fusions()

    def named(self, each: NamedLinear) -> NamedLinear:
        return each._replace(reads_rows=id(each.linear) in self.narrowed)


def fuse_layers(
    base: nn.Module, made: Probe, current: CurrentStep, initialize: Initialize, divides_heads: DividesHeads
) -> LayerFusion:
    """Replace the forward of what is recognized. base: on the meta device, with our linears and norms; made: its
    probe. initialize: fills a module's buffers."""
    name = type(base).__name__
    paths = {id(module): path for path, module in base.named_modules()}
    attentions = packed_attentions(base, made, current)
    if attentions is None or not all(_is_divided(each, paths, divides_heads) for each in attentions):
        logger.info("model-impl: attention of transformers' %s is not fused: it has a form of its own", name)
        return LayerFusion()
    tables = _tables(base, made, attentions, initialize)
    if tables is None:
        logger.info("model-impl: attention of transformers' %s is not fused: its rotary positions are unusual", name)
        return LayerFusion()
    for path, table in tables.items():
        parent, _, child = path.rpartition(".")
        setattr(base.get_submodule(parent), child, table)
    usual = usual_layers(base, made)
    if usual is None:
        logger.info("model-impl: layers of transformers' %s are not fused: their sums have a form of their own", name)
        for each in attentions:
            each.module.forward = PackedForward(each, made.modules[paths[id(each.module)]].num_returned)
        return LayerFusion(has_attention=True)
    return LayerFusion(True, PreNormLayers(usual, attentions), frozenset(linears_after_attention(usual, attentions)))


def _is_divided(attention: PackedAttention, paths: Mapping[int, str], divides_heads: DividesHeads) -> bool:
    path, parts = paths[id(attention.module)], attention.parts
    return divides_heads([f"{path}.{name}" for name in parts.projections], f"{path}.{parts.output}")


def _tables(
    base: nn.Module, made: Probe, attentions: Sequence[PackedAttention], initialize: Initialize
) -> dict[str, RotaryTables] | None:
    """By the path of the module that each replaces; None if one cannot be replaced."""
    paths = {id(module): path for path, module in base.named_modules()}
    users = {paths[id(each.module)] for each in attentions}
    users |= {path.rpartition(".")[0] for path in users}
    tables: dict[str, RotaryTables] = {}
    for each in attentions:
        if not each.rotates:
            continue
        rotary = made.modules[paths[id(each.module)]].named[ROTARY]
        source = next((path for path, call in made.modules.items() if call.returned is rotary), None)
        others = {path for path, call in made.modules.items() if _takes(call, rotary)} - users
        if source is None or others or not _is_called_plainly(made.modules[source]):
            return None
        assert isinstance(rotary, tuple)
        module, dim = base.get_submodule(source), rotary[0].shape[-1]
        if source not in tables:
            if not can_be_tables(module, dim, initialize):
                return None
            tables[source] = RotaryTables(module, dim)
    return tables


def _takes(call: ModuleCall, value: object) -> bool:
    return any(each is value for each in (*call.arguments, *call.named.values()))


def _is_called_plainly(call: ModuleCall) -> bool:
    """With hidden states and one position for each token, which alone tables take; models with vision give three."""
    given = *call.arguments, *call.named.values()
    if call.num_calls != 1 or len(given) != 2 or not all(isinstance(each, Tensor) for each in given):
        return False
    positions = given[1]
    return isinstance(positions, Tensor) and positions.shape == (1, NUM_TOKENS)
