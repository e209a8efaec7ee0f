"""Adapters strewn over a pool of NaN, tables with rubbish wherever nothing is to be read, and the formula by torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from torch import Tensor

from kernels.lora_tensors import LoraTables, TokenSlots
from kernels.lora_tiles import lora_arrivals, most_tiles, token_tiles

RUBBISH = 2**40
"""As an offset: beyond everything."""


def token_slots(slots: Sequence[int], device: str = "cpu", num_adapters: int | None = None) -> TokenSlots:
    """num_adapters: that there may be, with tiles for all; None: as many as the highest slot."""
    given = np.array(slots, np.int32)
    num_tiles = most_tiles(len(slots), given.max(initial=0) if num_adapters is None else num_adapters)
    tiles = torch.from_numpy(token_tiles(given, int(num_tiles)))
    return TokenSlots(torch.from_numpy(given).to(device), tiles.to(device))


def with_room(tables: LoraTables) -> LoraTables:
    """With a pool of twice the size, for `overwrite`."""
    return replace(tables, pool=torch.cat([tables.pool, tables.pool]))


def overwrite(kept: TokenSlots | LoraTables, given: TokenSlots | LoraTables) -> None:
    """The given values in the kept tensors' places, as for the next step's replay of a graph."""
    for place in fields(kept):
        values = getattr(given, place.name)
        if isinstance(values, Tensor):
            getattr(kept, place.name)[: len(values)].copy_(values)


@dataclass(frozen=True, slots=True)
class PartAdapter:
    """A [rank, in] and B [out, rank]; rank 0: the part is left as it is."""

    a: Tensor
    b: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class LoraCase:
    """Adapters of one projection, by slot and part."""

    size: int
    out_features: tuple[int, ...]
    max_rank: int
    dtype: torch.dtype = torch.float32
    adapters: dict[int, list[PartAdapter]] = field(default_factory=dict)

    def add(self, slot: int, *ranks: int) -> None:
        """Of random values that make results of about 1."""
        self.adapters[slot] = [
            PartAdapter(
                (torch.randn(rank, self.size) * self.size**-0.5).to(self.dtype),
                (torch.randn(features, rank) * max(rank, 1) ** -0.5).to(self.dtype),
                0.5 + slot % 3,
            )
            for rank, features in zip(ranks, self.out_features, strict=True)
        ]

    def tables(
        self, num_slots: int, *, strewn: bool = True, alignment: int = 1, device: str | torch.device = "cpu"
    ) -> LoraTables:
        """Slices of larger tables. strewn: each row by itself, in any order, between NaN; else one behind another."""
        num_parts = len(self.out_features)
        offsets = torch.full((2, num_slots, num_parts + 2, self.max_rank), RUBBISH, dtype=torch.int64)
        ranks = torch.full((num_slots, num_parts + 2), 2**30, dtype=torch.int32)
        scales = torch.full((num_slots, num_parts + 2), float("nan"))
        rows: list[tuple[Tensor, Tensor]] = []  # where the offset goes, and the values
        for slot, parts in self.adapters.items():
            for number, part in enumerate(parts, 1):
                ranks[slot, number], scales[slot, number] = len(part.a), part.scale
            for side in range(2):
                for number, part in enumerate(parts, 1):
                    rows += zip(offsets[side, slot, number], (part.a, part.b.T)[side], strict=False)
        pieces, end = [], 0
        for index in torch.randperm(len(rows)).tolist() if strewn else range(len(rows)):
            place, values = rows[index]
            gap = int(torch.randint(9, ())) if strewn else 0
            gap += -(end + gap) % alignment
            place.fill_(end + gap)
            pieces += [torch.full((gap,), float("nan"), dtype=self.dtype), values]
            end += gap + len(values)
        pieces.append(torch.full((512,), float("nan"), dtype=self.dtype))
        of_projection = slice(1, num_parts + 1)
        return LoraTables(
            torch.cat(pieces).to(device),
            *offsets.to(device)[:, :, of_projection],
            ranks.to(device)[:, of_projection],
            scales.to(device)[:, of_projection],
            self.out_features,
            alignment,
            lora_arrivals(num_slots, device),
        )

    def shrunk(self, x: Tensor, slots: Sequence[int]) -> Tensor:
        """[T, P, R], exact."""
        out = torch.zeros(len(slots), len(self.out_features), self.max_rank, dtype=torch.float64)
        for token, slot in enumerate(slots):
            for number, part in enumerate(self.adapters.get(slot, [])):
                out[token, number, : len(part.a)] = part.scale * (part.a.double() @ x[token].double().cpu())
        return out

    def expanded(self, shrunk: Tensor, slots: Sequence[int], y: Tensor) -> Tensor:
        """[T, N], exact. shrunk [T, P, R]."""
        out = y.double().cpu()
        for token, slot in enumerate(slots):
            columns = out[token].split(self.out_features)
            for number, part in enumerate(self.adapters.get(slot, [])):
                columns[number].add_(part.b.double() @ shrunk[token, number, : len(part.a)].double().cpu())
        return out
