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


class AttentionStep(Protocol):
    def attend(self, call: AttentionCall) -> Tensor:
        """[1, T, H, V]. Called once per layer, in the layers' order."""
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


class PagedStep:
    """One step of one model: caches its tokens' keys and values; its queries attend to all that is cached."""

    def __init__(self, caches: Sequence[LayerCache], inputs: AttentionInputs) -> None:
        self._layers = zip(caches, inputs.of_all_tokens(len(caches)), strict=True)

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
    step: CurrentStep = getattr(module, _ATTRIBUTE)
    return step.attend(call), None


def _some(heads: Tensor, kept: range, num_all: int) -> Tensor:
    """heads [1, all or some, T, dim] -> [1, some, T, dim]."""
    return heads[:, kept.start : kept.stop] if heads.shape[1] == num_all else heads


def rows_of_heads(heads: Tensor) -> Tensor:
    """[1, heads, T, dim] -> [T, heads, dim], with the last two dims contiguous, as the kernels need them."""
    is_one = heads.shape[1] == 1  # its stride may be anything, and contiguous() keeps it
    rows = heads[0, 0].unsqueeze(1) if is_one else heads[0].transpose(0, 1)
    return rows if rows.stride()[1:] == (rows.shape[2], 1) else rows.contiguous()
