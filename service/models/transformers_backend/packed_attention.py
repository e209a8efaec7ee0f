"""A layer's attention from the merged product of queries, keys and values to the output product: our kernels rotate and
cache the heads in one launch.

Replaces the forward of transformers' module if a trial gives the same: its queries, keys and values are parts of one
product, perhaps normed per head, then rotated by halves or not at all; and nothing else happens before or after our
attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kernels.rms_norm import rms_norm_reference
from kernels.rotary_embedding import rotary_embedding_reference
from service.layers.linear import Linear, Product
from service.layers.linear_method import Normed
from service.models.transformers_backend.attention import AttentionCall, CurrentStep, PackedCall, answer_alone
from service.models.transformers_backend.fusions import NormedRows
from service.models.transformers_backend.linears import LinearPart, WholeLinear, parts_of_one_product
from service.models.transformers_backend.probe import ModuleCall, Probe
from service.models.transformers_backend.trial import (
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
class AttentionParts:
    """Children of an attention module, by name. projections: of queries, keys and values. norms: of each head of
    queries, and of keys; or empty."""

    projections: tuple[str, ...]
    norms: tuple[str, ...]
    output: str


class PackedAttention:
    """call: of the layer in the probe step. rotates: whether the heads are rotated."""

    def __init__(
        self, module: nn.Module, parts: AttentionParts, call: AttentionCall, current: CurrentStep, *, rotates: bool
    ) -> None:
        first, output = module.get_submodule(parts.projections[0]), module.get_submodule(parts.output)
        assert isinstance(first, LinearPart) and isinstance(output, WholeLinear)
        self.module = module
        self.parts = parts
        self.qkv: Linear = first.linear
        self.output: Linear = output.linear
        self.rotates = rotates
        self._norms = [module.get_submodule(name) for name in parts.norms]
        self._head_dim = call.query.shape[3]
        self._limits = call.scale, call.window, call.softcap
        self._current = current

    def product(self, x: Normed, rotary: Rotary | None) -> Product:
        """x [T, hidden_size] -> [N, hidden_size], the rows that the step's `narrow` keeps."""
        projected = self.qkv(x)
        heads = projected.view(projected.shape[0], -1, self._head_dim)
        num_keys = self.qkv.out_features[1] // self._head_dim
        query_norm, key_norm, eps = self._norm_weights()
        call = PackedCall(
            self.module,
            heads,
            num_keys,
            rotary if self.rotates else None,
            query_norm,
            key_norm,
            eps,
            *self._limits,
        )
        return Product(self.output, self._current.step.attend_packed(call))

    def narrow(self, x: Tensor) -> Tensor:
        return self._current.step.narrow(x)

    def _norm_weights(self) -> tuple[Tensor | None, Tensor | None, float]:
        if not self._norms:
            return None, None, 0.0
        query, key = self._norms
        assert isinstance(query, NormedRows) and isinstance(key, NormedRows)
        return query.weight, key.weight, query.eps


class PackedForward:
    """Forward of transformers' attention module, in a layer that is otherwise transformers'."""

    def __init__(self, attention: PackedAttention, num_returned: int) -> None:
        self._attention = attention
        self._num_returned = num_returned

    def __call__(
        self, hidden_states: Tensor, *_: object, position_embeddings: Rotary | None = None, **__: object
    ) -> Tensor | tuple[Tensor | None, ...]:
        made = self._attention.product(hidden_states[0], position_embeddings).value()[None]
        return (made, *(None,) * (self._num_returned - 1)) if self._num_returned else made


def packed_attentions(base: nn.Module, made: Probe, current: CurrentStep) -> list[PackedAttention] | None:
    """Of all layers. None: at least one computes otherwise. base: with our linears and norms; made: its probe."""
    paths = {id(module): path for path, module in base.named_modules()}
    found = []
    for call in made.calls:
        path = paths[id(call.module)]
        parts = _parts(call.module, path, made)
        attention = None if parts is None else _tried(parts, call, made.modules[path], current)
        if attention is None:
            return None
        found.append(attention)
    return found


def children_in_order(path: str, modules: Mapping[str, ModuleCall]) -> list[str]:
    """Names of the children of `path` that are called, in the order of their first calls."""
    prefix = f"{path}."
    below = [name.removeprefix(prefix) for name in modules if name.startswith(prefix)]
    return [name for name in below if "." not in name]


def _parts(module: nn.Module, path: str, made: Probe) -> AttentionParts | None:
    names = children_in_order(path, made.modules)
    children = {name: module.get_submodule(name) for name in names}
    merged = [name for name, child in children.items() if isinstance(child, LinearPart)]
    norms = tuple(name for name, child in children.items() if isinstance(child, NormedRows))
    whole = [name for name, child in children.items() if isinstance(child, WholeLinear)]
    is_once = all(made.modules[f"{path}.{name}"].num_calls == 1 for name in names)
    kinds = len(merged), len(norms), len(whole)
    if kinds not in ((3, 0, 1), (3, 2, 1)) or len(names) != sum(kinds) or not is_once:
        return None
    in_order = parts_of_one_product([children[name] for name in merged])
    if in_order is None or len({getattr(children[name], "eps", None) for name in norms}) > 1:
        return None
    return AttentionParts(tuple(merged[index] for index in in_order), norms, whole[0])


def _tried(
    parts: AttentionParts, call: AttentionCall, module_call: ModuleCall, current: CurrentStep
) -> PackedAttention | None:
    for rotates in (True, False):
        with torch.device("cpu"), torch.no_grad():
            is_equal = all(_is_equal(parts, call, module_call, scale, rotates=rotates) for scale in SCALES)
        if is_equal:
            return PackedAttention(call.module, parts, call, current, rotates=rotates)
    return None


class _Answer:
    """An AttentionStep that keeps the call and answers with random numbers of this scale."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.call: AttentionCall | None = None
        self.answer = torch.empty(0)

    def attend(self, call: AttentionCall) -> Tensor:
        assert self.call is None
        self.call = call
        self.answer = self._scale * torch.randn_like(call.query).transpose(1, 2)
        return self.answer

    def attend_packed(self, call: PackedCall) -> Tensor:
        raise AssertionError("transformers' own forward is tried")

    def narrow(self, x: Tensor) -> Tensor:
        return x


def _is_equal(
    parts: AttentionParts, call: AttentionCall, module_call: ModuleCall, scale: float, *, rotates: bool
) -> bool:
    rotary_dim = _rotary_dim(module_call)
    weights = [call.module.get_parameter(f"{name}.weight") for name in parts.norms]
    of_one_head = all(weight.shape == call.query.shape[3:] for weight in weights)
    is_usual = call.value.shape == call.key.shape and call.sinks is None and of_one_head
    if not is_usual or (rotates and rotary_dim is None) or (parts.norms and not rotates):
        return False
    children = dict(_small_children(parts, call))
    trial, answer = small_copy(call.module, children), _Answer(scale)
    answer_alone(trial, answer)
    x, rotary = random_hidden(scale), random_rotary(rotary_dim or 2)
    returned = call_as(trial, module_call, x, rotary)
    made = returned[0] if isinstance(returned, tuple) else returned
    if answer.call is None or made is None:
        return False
    heads = _heads(children, parts, x, call)
    if rotates:
        _turn(heads, children, parts, call, rotary)
    expected = heads.transpose(0, 1)[None].split((call.query.shape[1], call.key.shape[1], call.key.shape[1]), dim=1)
    got = answer.call.query, answer.call.key, answer.call.value
    output = children[parts.output](answer.answer.flatten(2))
    is_same = (answer.call.scale, answer.call.window, answer.call.softcap) == (call.scale, call.window, call.softcap)
    return is_same and all(map(is_close, got, expected)) and is_close(made, output)


def _rotary_dim(call: ModuleCall) -> int | None:
    rotary = call.named.get(ROTARY)
    if isinstance(rotary, tuple) and len(rotary) == 2 and isinstance(rotary[0], Tensor):
        return rotary[0].shape[-1]
    return None


def _small_children(parts: AttentionParts, call: AttentionCall) -> Iterator[tuple[str, nn.Module]]:
    num_queries, num_keys, dim = call.query.shape[1], call.key.shape[1], call.query.shape[3]
    for name, num_heads in zip(parts.projections, (num_queries, num_keys, num_keys), strict=True):
        yield name, nn.Linear(SIZE, num_heads * dim)
    for name in parts.norms:
        theirs = call.module.get_submodule(name)
        assert isinstance(theirs, NormedRows)
        yield name, NormedRows(nn.Parameter(torch.rand(theirs.weight.shape) + 0.5), theirs.eps)
    yield parts.output, nn.Linear(num_queries * dim, SIZE)


def _heads(children: Mapping[str, nn.Module], parts: AttentionParts, x: Tensor, call: AttentionCall) -> Tensor:
    """[T, H + 2 * K, D]."""
    dim = call.query.shape[3]
    return torch.cat([children[name](x)[0].unflatten(-1, (-1, dim)) for name in parts.projections], dim=1)


def _turn(
    heads: Tensor, children: Mapping[str, nn.Module], parts: AttentionParts, call: AttentionCall, rotary: Rotary
) -> None:
    first_key = call.query.shape[1]
    first_value = first_key + call.key.shape[1]
    for name, some in zip(parts.norms, (slice(first_key), slice(first_key, first_value)), strict=False):
        norm = children[name]
        assert isinstance(norm, NormedRows)
        heads[:, some] = rms_norm_reference(heads[:, some], norm.weight, norm.eps)
    cos, sin = (each[0] for each in rotary)
    half = sin.shape[1] // 2
    rotary_embedding_reference(heads[:, :first_value], cos, torch.cat((-sin[:, :half], sin[:, half:]), dim=-1))
