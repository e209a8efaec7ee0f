"""Rotary positions of transformers as tables, from which each step takes its rows.

transformers computes cosines and sines anew in each step. What its module returns for a position does not depend on
anything else (checked by a trial), so it is asked once for all positions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from service.models.transformers_backend.trial import POSITIONS, SIZE, Rotary

Initialize = Callable[[nn.Module], None]


class RotaryTables(nn.Module):
    """Replaces transformers' module. position_ids [1, T] -> what `PackedCall.rotary` is: two tensors [T, R].

    `build` makes the tables on a device; there are none before.
    """

    def __init__(self, theirs: nn.Module, dim: int) -> None:
        super().__init__()
        self.theirs = theirs
        self._dim = dim
        self._cos: Tensor | None = None
        self._sin: Tensor | None = None

    @torch.no_grad()
    def build(self, num_positions: int, device: torch.device) -> None:
        theirs = copy.deepcopy(self.theirs).to("cpu")
        positions = torch.arange(num_positions, device="cpu")
        cos, sin = theirs(torch.empty(1, 1, 1, device="cpu"), position_ids=positions[None])
        half = self._dim // 2
        self._cos = cos[0].contiguous().to(device)
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1).to(device)

    def forward(self, x: Tensor, position_ids: Tensor) -> Rotary:
        if self._cos is None or self._sin is None:  # a step without memory
            rows = x.new_empty(position_ids.shape[1], self._dim, dtype=torch.float32)
            return rows, rows
        return self._cos.index_select(0, position_ids[0]), self._sin.index_select(0, position_ids[0])


def can_be_tables(module: nn.Module, dim: int, initialize: Initialize) -> bool:
    """Whether the module, on the meta device, returns (c, c) and (s, s) for each position alone. initialize: fills its
    buffers."""
    is_plain = not module._parameters and not module._modules
    if not is_plain or not module._buffers.keys() <= module._non_persistent_buffers_set:
        return False
    try:
        with torch.device("cpu"), torch.no_grad():
            return _is_of_halves(_filled(module, initialize), dim)
    except Exception:  # foreign code: whatever it raises, it is not equal
        return False


def _filled(module: nn.Module, initialize: Initialize) -> nn.Module:
    trial = copy.copy(module)
    trial._buffers = {
        name: None if each is None else torch.zeros(each.shape, dtype=each.dtype)
        for name, each in module._buffers.items()
    }
    initialize(trial)
    return trial


def _is_of_halves(module: nn.Module, dim: int) -> bool:
    x, positions = torch.randn(1, len(POSITIONS), SIZE), torch.tensor([POSITIONS])
    together = module(x, position_ids=positions)
    alone = [module(2 * x[:, :1], position_ids=positions[:, i : i + 1]) for i in range(len(POSITIONS))]
    return all(
        isinstance(made, Tensor)
        and not torch.equal(made[:, 0], made[:, 1])  # else its frequencies were not filled
        and made.shape == (1, len(POSITIONS), dim)
        and torch.equal(made[..., : dim // 2], made[..., dim // 2 :])
        and torch.equal(made, torch.cat([each[index] for each in alone], dim=1))
        for index, made in enumerate(together)
    )
