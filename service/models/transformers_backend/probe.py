"""A probe step on the meta device: finds out what a model's layers ask of attention, and which linears read the same
rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from service.errors import ModelLoadError
from service.models.transformers_backend.attention import AttentionCall, CurrentStep

NUM_TOKENS = 3
"""Tokens of a probe step."""

_MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Probe:
    """calls: of attention, in order. linears: names below the model in the order of their calls, in groups that read
    the same tensor; each is called once. num_returned: module name -> how many values it returns (0: a single tensor),
    in the order of first calls."""

    calls: Sequence[AttentionCall]
    linears: Sequence[Sequence[str]]
    num_returned: Mapping[str, int]


@dataclass(slots=True)
class Recorder:
    """An AttentionStep that records the calls and computes nothing."""

    calls: list[AttentionCall] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return call.query.new_empty(1, call.query.shape[2], call.query.shape[1], call.value.shape[3])


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
    num_returned: dict[str, int] = {}
    for name, module in base.named_modules():
        handles.append(module.register_forward_pre_hook(_noting_call(num_returned, name)))
        handles.append(module.register_forward_hook(_noting_form(num_returned, name)))
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
    return Probe(recorder.calls, _groups(reads), num_returned)


def first_sentence(fault: Exception) -> str:
    """The first sentence of a foreign error, which may go on for pages."""
    words = " ".join(str(fault).split())
    return words.partition(". ")[0][:_MOST_CHARACTERS]


def _noting(reads: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        reads.append(arguments[0])

    return note


def _noting_call(num_returned: dict[str, int], name: str) -> Callable[[nn.Module, object], None]:
    def note(module: nn.Module, arguments: object) -> None:
        num_returned.setdefault(name, 0)

    return note


def _noting_form(num_returned: dict[str, int], name: str) -> Callable[[nn.Module, object, object], None]:
    def note(module: nn.Module, arguments: object, made: object) -> None:
        num_returned[name] = len(made) if isinstance(made, tuple) else 0

    return note


def _groups(reads: Mapping[str, Sequence[Tensor]]) -> list[list[str]]:
    """Sibling modules that read the same tensor. All tensors are alive, so their ids are unique."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name, tensors in reads.items():
        if len(tensors) == 1:
            groups.setdefault((name.rpartition(".")[0], id(tensors[0])), []).append(name)
    return list(groups.values())
