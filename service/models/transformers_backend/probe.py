"""A probe step on the meta device: finds out what a model's layers ask of attention, and which linears read the same
rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from service.errors import ModelLoadError
from service.models.transformers_backend.attention import AttentionCall, CurrentStep, PackedCall

NUM_TOKENS = 3
"""Tokens of a probe step."""

_MOST_CHARACTERS = 300


@dataclass(slots=True)
class ModuleCall:
    """The first call of a module: its arguments, and what it returned. num_calls: of this module in the step."""

    arguments: tuple[object, ...]
    named: Mapping[str, object]
    returned: object = None
    num_calls: int = 1

    @property
    def num_returned(self) -> int:
        """How many values it returns; 0: a single tensor."""
        return len(self.returned) if isinstance(self.returned, tuple) else 0


@dataclass(frozen=True, slots=True)
class Probe:
    """calls: of attention, in order. linears: names below the model in the order of their calls, in groups that read
    the same tensor; each is called once. modules: by name, in the order of first calls."""

    calls: Sequence[AttentionCall]
    linears: Sequence[Sequence[str]]
    modules: Mapping[str, ModuleCall]


@dataclass(slots=True)
class Recorder:
    """An AttentionStep that records the calls and computes nothing."""

    calls: list[AttentionCall] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return call.query.new_empty(1, call.query.shape[2], call.query.shape[1], call.value.shape[3])

    def attend_packed(self, call: PackedCall) -> Tensor:
        query, key, value = (heads.transpose(0, 1)[None] for heads in call.split())
        limits = call.scale, call.window, call.softcap
        recorded = AttentionCall(call.module, query, key, value, *limits, sinks=None, mask=None, others={})
        return self.attend(recorded)[0].flatten(1)

    def narrow(self, x: Tensor) -> Tensor:
        return x


def probe(base: nn.Module, current: CurrentStep) -> Probe:
    """base: the model without its head, on the meta device. current: its step. Raises ModelLoadError if it cannot
    compute there."""
    recorder = Recorder()
    reads: dict[str, list[Tensor]] = {}
    handles = [
        module.register_forward_pre_hook(_noting(reads.setdefault(name, [])))
        for name, module in base.named_modules()
        if type(module) is nn.Linear
    ]
    modules: dict[str, ModuleCall] = {}
    for name, module in base.named_modules():
        handles.append(module.register_forward_pre_hook(_noting_call(modules, name), with_kwargs=True))
        handles.append(module.register_forward_hook(_noting_form(modules, name)))
    token_ids = torch.zeros(1, NUM_TOKENS, dtype=torch.int64, device="meta")
    positions = torch.zeros(1, NUM_TOKENS, dtype=torch.int64, device="meta")
    try:
        with current.answered_by(recorder):
            base(input_ids=token_ids, position_ids=positions, use_cache=False)
    except Exception as fault:  # it is others' code: anything may come
        reason = first_sentence(fault)
        raise ModelLoadError(
            f"model-impl: {type(base).__name__} of transformers cannot compute a batch without padding: {reason}"
        ) from fault
    finally:
        for handle in handles:
            handle.remove()
    return Probe(recorder.calls, _groups(reads), modules)


def first_sentence(fault: Exception) -> str:
    """The first sentence of a foreign error, which may go on for pages."""
    words = " ".join(str(fault).split())
    return words.partition(". ")[0][:_MOST_CHARACTERS]


def _noting(reads: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        reads.append(arguments[0])

    return note


def _noting_call(
    modules: dict[str, ModuleCall], name: str
) -> Callable[[nn.Module, tuple[object, ...], dict[str, object]], None]:
    def note(module: nn.Module, arguments: tuple[object, ...], named: dict[str, object]) -> None:
        if name in modules:
            modules[name].num_calls += 1
        else:
            modules[name] = ModuleCall(arguments, named)

    return note


def _noting_form(modules: dict[str, ModuleCall], name: str) -> Callable[[nn.Module, object, object], None]:
    def note(module: nn.Module, arguments: object, returned: object) -> None:
        if modules[name].num_calls == 1:
            modules[name].returned = returned

    return note


def _groups(reads: Mapping[str, Sequence[Tensor]]) -> list[list[str]]:
    """Sibling modules that read the same tensor. All tensors are alive, so their ids are unique."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name, tensors in reads.items():
        if len(tensors) == 1:
            groups.setdefault((name.rpartition(".")[0], id(tensors[0])), []).append(name)
    return list(groups.values())
