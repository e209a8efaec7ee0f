"""Decoder layers of the usual form, run as our own model files run theirs: sums of the residual stream are fused with
the norms and products around them.

    h = x + attention(norm(x)),  x = h + mlp(norm(h))

transformers' model still calls each layer. All but the last return their input, and the last one computes all layers:
a layer's last product is fused with the next layer's norm. So between two layers the model must do nothing, which the
probe step shows; the form of each layer is tried with stand-ins for its attention and MLP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from service.layers.add_norm_fusion import AddNormFusion
from service.layers.gated_mlp import GatedMlp
from service.layers.linear import Product
from service.layers.rms_norm import ResidualRMSNorm
from service.models.transformers_backend.fusions import GatedRows, NormedRows
from service.models.transformers_backend.packed_attention import PackedAttention, children_in_order
from service.models.transformers_backend.probe import ModuleCall, Probe
from service.models.transformers_backend.trial import (
    HIDDEN,
    ROTARY,
    SCALES,
    SIZE,
    Rotary,
    call_as,
    is_close,
    random_hidden,
    random_rotary,
    small_copy,
)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A layer of the usual form. Children by name, in the order of their calls."""

    path: str
    layer: nn.Module
    attention_norm: str
    attention: str
    mlp_norm: str
    mlp: str
    num_returned: int


class PreNormLayer:
    """(x, residual) -> (x, residual), as LlamaBlock: what the layer adds to the stream, and the stream before that.

    Its norms take the place of transformers', with the same weights.
    """

    def __init__(self, parts: LayerParts, attention: PackedAttention) -> None:
        self.attention = attention
        self.attention_norm = _replaced(parts.layer, parts.attention_norm)
        self.mlp_norm = _replaced(parts.layer, parts.mlp_norm)
        theirs = parts.layer.get_submodule(parts.mlp)
        self.mlp = theirs.mlp if isinstance(theirs, GatedRows) else theirs

    def __call__(
        self, x: Tensor | Product, residual: Tensor | None, rotary: Rotary | None
    ) -> tuple[Tensor | Product, Tensor]:
        normed, residual = self.attention_norm(x, residual, self.attention.qkv)
        attended = self.attention.product(normed, rotary)
        residual = self.attention.narrow(residual)
        if isinstance(self.mlp, GatedMlp):
            normed, residual = self.mlp_norm(attended, residual, self.mlp.gate_up)
            return self.mlp(normed), residual
        rows, residual = self.mlp_norm(attended.value(), residual)
        return self.mlp(rows[None])[0], residual


class PreNormLayers:
    """All layers of a model, or of a stage. Changes the layers' forward, and puts our norms in place of theirs."""

    def __init__(self, parts: Sequence[LayerParts], attentions: Sequence[PackedAttention]) -> None:
        self._parts = parts
        self.layers = [PreNormLayer(*both) for both in zip(parts, attentions, strict=True)]
        self._rotary: list[Rotary | None] = []
        self._take_over()

    def keep(self, kept: range) -> None:
        """Keep only these layers."""
        self._parts = self._parts[kept.start : kept.stop]
        self.layers = self.layers[kept.start : kept.stop]
        self._take_over()

    def _take_over(self) -> None:
        last = len(self._parts) - 1
        for index, parts in enumerate(self._parts):
            parts.layer.forward = _Forward(self, index, parts.num_returned, is_last=index == last)

    def note(self, index: int, rotary: Rotary | None) -> None:
        """Keep the rotary positions of a layer until `compute`."""
        self._rotary[index:] = [rotary]

    def compute(self, hidden: Tensor) -> Tensor:
        """hidden [1, T, hidden_size], the first layer's input -> the last one's output, [1, N, hidden_size]."""
        x: Tensor | Product = hidden[0].clone()  # it is overwritten, and transformers' model may read it again
        residual: Tensor | None = None
        for layer, rotary in zip(self.layers, self._rotary, strict=True):
            x, residual = layer(x, residual, rotary)
        self._rotary = []
        assert residual is not None
        return (residual + (x.value() if isinstance(x, Product) else x))[None]

    def add_norm_fusions(self) -> Sequence[AddNormFusion]:
        """As in CausalLM; none around an MLP of transformers, whose output may not be a product."""
        into_mlp = [
            AddNormFusion(layer.attention.output, layer.mlp_norm, layer.mlp.gate)
            for layer in self.layers
            if isinstance(layer.mlp, GatedMlp)
        ]
        into_attention = [
            AddNormFusion(layer.mlp.down, then.attention_norm, then.attention.qkv)
            for layer, then in pairwise(self.layers)
            if isinstance(layer.mlp, GatedMlp)
        ]
        return (*into_mlp, *into_attention)


class _Forward:
    """Forward of a layer."""

    def __init__(self, layers: PreNormLayers, index: int, num_returned: int, *, is_last: bool) -> None:
        self._layers = layers
        self._index = index
        self._num_returned = num_returned
        self._is_last = is_last

    def __call__(
        self, hidden_states: Tensor, *_: object, position_embeddings: Rotary | None = None, **__: object
    ) -> Tensor | tuple[Tensor | None, ...]:
        self._layers.note(self._index, position_embeddings)
        hidden = self._layers.compute(hidden_states) if self._is_last else hidden_states
        return (hidden, *(None,) * (self._num_returned - 1)) if self._num_returned else hidden


def usual_layers(base: nn.Module, made: Probe) -> list[LayerParts] | None:
    """The layers of a model with our linears and norms, if all have the usual form. made: its probe."""
    paths = {id(module): path for path, module in base.named_modules()}
    found = [_parts(base, paths[id(call.module)], made) for call in made.calls]
    usual = [parts for parts in found if parts is not None and _has_usual_form(parts, made)]
    calls = [made.modules[parts.path] for parts in usual]
    is_chain = all(_output(before) is _input(then) for before, then in pairwise(calls))
    return usual if len(usual) == len(found) and is_chain else None


def _parts(base: nn.Module, attention: str, made: Probe) -> LayerParts | None:
    path, _, name = attention.rpartition(".")
    names, call = children_in_order(path, made.modules), made.modules.get(path)
    if call is None or call.num_calls != 1 or len(names) != 4 or names[1] != name:
        return None
    layer = base.get_submodule(path)
    is_normed = all(isinstance(layer.get_submodule(each), NormedRows) for each in (names[0], names[2]))
    calls = [made.modules[f"{path}.{each}"] for each in names]
    is_once = all(each.num_calls == 1 for each in calls)
    if not is_normed or not is_once or calls[3].num_returned:
        return None
    attention_norm, _, mlp_norm, mlp = names
    return LayerParts(path, layer, attention_norm, name, mlp_norm, mlp, call.num_returned)


def _input(call: ModuleCall) -> object:
    return call.arguments[0] if call.arguments else call.named.get(HIDDEN)


def _output(call: ModuleCall) -> object:
    return call.returned[0] if isinstance(call.returned, tuple) else call.returned


def _has_usual_form(parts: LayerParts, made: Probe) -> bool:
    with torch.device("cpu"), torch.no_grad():
        return all(_is_equal(parts, made, scale) for scale in SCALES)


class _Branch(nn.Linear):
    """Its output is of this scale, for rows of a norm."""

    def __init__(self, scale: float) -> None:
        super().__init__(SIZE, SIZE)
        self._scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self._scale * super().forward(x)


class _Attention(nn.Module):
    """Stands for attention."""

    def __init__(self, linear: _Branch, num_returned: int) -> None:
        super().__init__()
        self.linear = linear
        self.rotary: Rotary | None = None
        self._num_returned = num_returned

    def forward(
        self, hidden_states: Tensor, *_: object, position_embeddings: Rotary | None = None, **__: object
    ) -> Tensor | tuple[Tensor | None, ...]:
        self.rotary = position_embeddings
        made: Tensor = self.linear(hidden_states)
        return (made, *(None,) * (self._num_returned - 1)) if self._num_returned else made


def _is_equal(parts: LayerParts, made: Probe, scale: float) -> bool:
    attention = _Attention(_Branch(scale), made.modules[f"{parts.path}.{parts.attention}"].num_returned)
    mlp = _Branch(scale)
    norms = [_small_norm(parts.layer.get_submodule(name)) for name in (parts.attention_norm, parts.mlp_norm)]
    children = dict(zip((parts.attention_norm, parts.mlp_norm), norms, strict=True))
    trial = small_copy(parts.layer, {**children, parts.attention: attention, parts.mlp: mlp})
    call = made.modules[parts.path]
    x, rotary = random_hidden(scale), random_rotary(2) if ROTARY in call.named else None
    returned = call_as(trial, call, x, rotary)
    after_attention = x + attention.linear(norms[0](x))
    expected = after_attention + mlp(norms[1](after_attention))
    is_same = is_close(returned[0] if isinstance(returned, tuple) else returned, expected)
    return is_same and attention.rotary is rotary


def _small_norm(norm: nn.Module) -> NormedRows:
    assert isinstance(norm, NormedRows)
    return NormedRows(nn.Parameter(torch.rand(SIZE) + 0.5), norm.eps)


def _replaced(layer: nn.Module, name: str) -> ResidualRMSNorm:
    theirs = layer.get_submodule(name)
    assert isinstance(theirs, NormedRows)
    ours = ResidualRMSNorm(theirs.weight.shape[0], theirs.eps)
    ours.weight = theirs.weight
    setattr(layer, name, ours)
    return ours


def linears_after_attention(parts: Sequence[LayerParts], attentions: Sequence[PackedAttention]) -> Iterator[int]:
    """Their ids: a narrowed layer computes only the rows that are read."""
    for each, attention in zip(parts, attentions, strict=True):
        for module in each.layer.modules():
            if module is not attention.qkv:
                yield id(module)
