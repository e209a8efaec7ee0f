"""Layers that keep their keys and values in the same blocks: one group, where all layers see alike, else several.

Where some layers see a sliding window and others everything, a block that held all layers could never be given back.
So layers that see alike form groups of equally many, a block holds tokens of one group's layers, and a block table has
an entry for each group. All blocks are of one size and of one pool, whatever group takes them (vLLM's hybrid KV cache
manager; Jenga, Zhang et al. 2025, cuts blocks of several sizes out of larger ones instead).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

MOST_GROUPS = 8
"""Each costs entries in tables and slots for every token of a step."""


class TableGroups(NamedTuple):
    """A table has for each block_size tokens a unit of so many entries: one of each group whose layers see everything,
    then one of each group whose layers see a window."""

    num_full: int = 1
    num_windowed: int = 0

    @property
    def size(self) -> int:
        return self.num_full + self.num_windowed


ALL_SEE_ALL = TableGroups(1, 0)
ALL_SEE_A_WINDOW = TableGroups(0, 1)


def one_group(window: int | None) -> TableGroups:
    """Of layers that all see through this window, or everything."""
    return ALL_SEE_ALL if window is None else ALL_SEE_A_WINDOW


class LayerGroups(NamedTuple):
    """group_of: of each layer, as the tables have them. layers_each: in a block; of some groups there may be fewer.

    Of a pipeline stage its own layers; tables and layers_each are all stages', so that a block id means the same in
    each. Some of a stage's groups may have no layer there."""

    tables: TableGroups
    layers_each: int
    group_of: tuple[int, ...]

    @classmethod
    def one(cls, num_layers: int, tables: TableGroups = ALL_SEE_ALL) -> LayerGroups:
        return cls(tables, num_layers, (0,) * num_layers)

    @classmethod
    def of(
        cls,
        windows: Sequence[int | None],
        longest: int,
        *,
        is_parted: bool = True,
        num_stages: int = 1,
        stage: int = 0,
    ) -> LayerGroups:
        """windows: each layer's, of all stages, which have equally many; one of `longest` tokens, the most that a
        sequence has, is none. is_parted: unless all see alike, there are several groups.

        Of all sizes that a group may have it is the one with the fewest places held for all tokens, then with the
        fewest places that no layer fills, then with the fewest groups: by the stage that has most layers of a kind. It
        is one group if stages that differ would hold no less for all tokens.
        """
        is_full_anywhere = [window is None or window >= longest for window in windows]
        num_layers = len(windows) // num_stages
        stages = [is_full_anywhere[nth * num_layers : (nth + 1) * num_layers] for nth in range(num_stages)]
        is_full = stages[stage]
        num_full, num_windowed = (max(each.count(kind) for each in stages) for kind in (True, False))
        if not (is_parted and num_full and num_windowed):
            of_one_kind = ALL_SEE_A_WINDOW if num_windowed and not num_full else ALL_SEE_ALL
            return cls.one(num_layers, of_one_kind)
        sizes = range(1, max(num_full, num_windowed) + 1)
        counts = {size: TableGroups(-(-num_full // size), -(-num_windowed // size)) for size in sizes}
        fitting = [size for size in sizes if counts[size].size <= MOST_GROUPS]
        each = min(fitting, key=lambda size: (counts[size].num_full * size, counts[size].size * size, -size))
        tables = counts[each]
        if num_stages > 1 and tables.num_full * each >= num_layers:
            return cls.one(num_layers)
        in_order = {True: count(), False: count(tables.num_full * each)}
        return cls(tables, each, tuple(next(in_order[kind]) // each for kind in is_full))

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Of each layer: its group, and its place in that group's blocks."""
        return tuple((group, self.group_of[:layer].count(group)) for layer, group in enumerate(self.group_of))
