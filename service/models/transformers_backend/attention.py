"""Our attention behind transformers' attention interface (`AttentionInterface.register`).

All modules of all models call the one registered function. It finds the step being computed through the module, because
not all models pass extra arguments to their layers: every module of a model holds the model's `CurrentStep`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from kernels.reshape_and_cache import reshape_and_cache
from kernels.rotary_and_cache import rotary_and_cache
from service.layers.attention import AttentionInputs, LayerCache, paged_attention

IMPLEMENTATION = "headrace"
"""The name that transformers' configurations select it by."""

_ATTRIBUTE = "headrace_step"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of a layer's call. query [1, H, T, D], key [1, K, T, D], value [1, K, T, V], V <= D.

    window: how many tokens a query sees, itself included; None: all. softcap: of the scores; None: none. sinks: [H], a
    score per head without a value; None: none. mask: made by the model itself. others: arguments that are not known
    here, by name.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    mask: Tensor | None
    others: Mapping[str, object]


class RankHeads(NamedTuple):
    """The heads of one rank of several, out of `num_queries` and `num_keys`."""

    queries: range
    num_queries: int
    keys: range
    num_keys: int

    def of(self, call: AttentionCall) -> AttentionCall:
        """Reduce a call that has all heads to this rank's: some modules compute all queries and keys."""
        sinks = call.sinks
        if sinks is not None and len(sinks) == self.num_queries:
            sinks = sinks[self.queries.start : self.queries.stop]
        return replace(
            call,
            query=_some(call.query, self.queries, self.num_queries),
            key=_some(call.key, self.keys, self.num_keys),
            value=_some(call.value, self.keys, self.num_keys),
            sinks=sinks,
        )


@dataclass(frozen=True, slots=True)
class PackedCall:
    """A layer's call before queries and keys are rotated, all heads in one tensor.

    heads: [T, H + 2 * K, D], query, key, then value heads; may be overwritten. rotary: (c, c) and (-s, s), [T, R] fp32
    (kernels/rotary_and_cache.py); None: heads are not rotated. query_norm, key_norm: [D], weights of RMS norms before
    the rotation, with eps; None: no norms, as always without rotation. The others are as in AttentionCall.
    """

    module: nn.Module
    heads: Tensor
    num_kv_heads: int
    rotary: tuple[Tensor, Tensor] | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    eps: float
    scale: float
    window: int | None
    softcap: float | None

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: [T, heads, D] each, as they are now."""
        num_keys = self.num_kv_heads
        query, key, value = self.heads.split((self.heads.shape[1] - 2 * num_keys, num_keys, num_keys), dim=1)
        return query, key, value


class AttentionStep(Protocol):
    """Each layer makes one call, in the layers' order."""

    def attend(self, call: AttentionCall) -> Tensor:
        """[1, T, H, V]."""
        ...

    def attend_packed(self, call: PackedCall) -> Tensor:
        """[N, H * D]: the rows that `narrow` keeps."""
        ...

    def narrow(self, x: Tensor) -> Tensor:
        """x [T, ...] -> [N, ...]: the rows whose output the layer of the last call computes."""
        ...


class CurrentStep:
    """The step that a model is computing, which answers its layers' attention calls. Used on the computing thread.

    heads: this rank's, if several divide them; steps are asked for these only.
    """

    def __init__(self, model: nn.Module) -> None:
        self._step: AttentionStep | None = None
        self.heads: RankHeads | None = None
        for module in model.modules():
            setattr(module, _ATTRIBUTE, self)

    @contextmanager
    def answered_by(self, step: AttentionStep) -> Iterator[None]:
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def attend(self, call: AttentionCall) -> Tensor:
        assert self._step is not None
        return self._step.attend(call if self.heads is None else self.heads.of(call))

    @property
    def step(self) -> AttentionStep:
        """For calls that have only this rank's heads."""
        assert self._step is not None
        return self._step


class PagedStep:
    """One step of one model: caches its tokens' keys and values; its queries attend to all that is cached.

    narrows: the last layer computes only the rows that are read.
    """

    def __init__(self, caches: Sequence[LayerCache], inputs: AttentionInputs, *, narrows: bool) -> None:
        by_layer = inputs.by_layer if narrows else inputs.of_all_tokens
        self._layers = zip(caches, by_layer(len(caches)), strict=True)
        self._inputs = inputs

    def attend_packed(self, call: PackedCall) -> Tensor:
        cache, self._inputs = next(self._layers)
        query, key, value = call.split()
        slots = self._inputs.slots
        if call.rotary is None:
            reshape_and_cache(key, value, *cache, slots)
        else:
            rotary_and_cache(call.heads, *call.rotary, *cache, slots, call.query_norm, call.key_norm, call.eps)
        return paged_attention(query, cache, self._inputs, call.scale, call.window, call.softcap)

    def narrow(self, x: Tensor) -> Tensor:
        return self._inputs.narrow(x)

    def attend(self, call: AttentionCall) -> Tensor:
        cache, inputs = next(self._layers)
        head_dim, value_dim = call.query.shape[-1], call.value.shape[-1]
        value = call.value if value_dim == head_dim else F.pad(call.value, (0, head_dim - value_dim))
        reshape_and_cache(rows_of_heads(call.key), rows_of_heads(value), *cache, inputs.slots)
        query = rows_of_heads(call.query)
        attended = paged_attention(query, cache, inputs, call.scale, call.window, call.softcap, sinks=call.sinks)
        return attended.view(1, *query.shape)[..., :value_dim]


def register_attention() -> None:
    """Register the function with transformers. May be called again."""
    AttentionInterface.register(IMPLEMENTATION, _attend)


def answer_alone(module: nn.Module, step: AttentionStep) -> None:
    """Have this one module's calls answered by `step`, whatever model it is in."""
    setattr(module, _ATTRIBUTE, step)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = AttentionCall(module, query, key, value, scale, sliding_window, softcap, s_aux, attention_mask, others)
    step: CurrentStep | AttentionStep = getattr(module, _ATTRIBUTE)
    return step.attend(call), None


def _some(heads: Tensor, kept: range, num_all: int) -> Tensor:
    """heads [1, all or some, T, dim] -> [1, some, T, dim]."""
    return heads[:, kept.start : kept.stop] if heads.shape[1] == num_all else heads


def rows_of_heads(heads: Tensor) -> Tensor:
    """[1, heads, T, dim] -> [T, heads, dim], with the last two dims contiguous, as the kernels need them."""
    is_one = heads.shape[1] == 1  # its stride may be anything, and contiguous() keeps it
    rows = heads[0, 0].unsqueeze(1) if is_one else heads[0].transpose(0, 1)
    return rows if rows.stride()[1:] == (rows.shape[2], 1) else rows.contiguous()
