"""Small copies of transformers' modules, called on the CPU as the probe step called the modules.

A formula of ours replaces a module's only if both give the same numbers here. A copy keeps what its module is set to,
but its children have few features and random weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from service.models.transformers_backend.probe import ModuleCall

SIZE = 8
"""Features of a trial's hidden states."""

SCALES = (1.0, 1e4)
"""Of hidden states: large ones find a limit on values."""

POSITIONS = (2, 70_001, 12_345_678)
"""Of a trial's tokens: far ones find a factor that depends on the position."""

HIDDEN, ROTARY, _POSITIONS = "hidden_states", "position_embeddings", "position_ids"

Rotary = tuple[Tensor, Tensor]


def small_copy(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module:
    """`module` with these children in place of those of the same names."""
    trial = copy.copy(module)
    trial._modules = {**module._modules, **children}
    return trial


def random_hidden(scale: float) -> Tensor:
    return scale * torch.randn(1, len(POSITIONS), SIZE)


def random_rotary(dim: int) -> Rotary:
    """(c, c) and (s, s), [1, T, dim] each, as transformers' modules of Llama's kind return them."""
    angles = 6 * torch.rand(1, len(POSITIONS), dim // 2)
    return torch.cat((angles.cos(), angles.cos()), dim=-1), torch.cat((angles.sin(), angles.sin()), dim=-1)


def call_as(trial: nn.Module, call: ModuleCall, hidden: Tensor, rotary: Rotary | None) -> object:
    """What the trial returns for these inputs and otherwise the arguments of `call`. None: it raises an error, or the
    call has arguments that have no value here."""
    arguments, named = list(call.arguments), dict(call.named)
    if arguments:
        arguments[0] = hidden
    else:
        named[HIDDEN] = hidden
    if ROTARY in named:
        named[ROTARY] = rotary
    if isinstance(named.get(_POSITIONS), Tensor):
        named[_POSITIONS] = torch.tensor([POSITIONS])
    if any(each.is_meta for each in _tensors((*arguments, *named.values()))):
        return None
    try:
        return trial(*arguments, **named)
    except Exception:  # foreign code: whatever it raises, it is not equal
        return None


def is_close(made: object, expected: Tensor) -> bool:
    if not isinstance(made, Tensor) or made.shape != expected.shape:
        return False
    return torch.allclose(made, expected, 1e-4, 1e-5 * float(expected.abs().max()))


def _tensors(values: object) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(tuple(values.values()))
    elif isinstance(values, tuple | list):
        for each in values:
            yield from _tensors(each)
