"""Layer groups: which layers share KV blocks. One group if all layers see alike, else several.

If some layers have a sliding window and others full attention, a block that held all layers could never be freed. So
layers that see alike are divided into groups of equal size. A block holds tokens of one group's layers, and a block
table has an entry per group. All blocks have the same size and come from one pool, whichever group uses them (as in
vLLM's hybrid KV cache manager; Jenga, Zhang et al. 2025, instead cuts blocks of several sizes out of larger ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

MOST_GROUPS = 8
"""Every group costs table entries, and a slot for every token of a step."""


class TableGroups(NamedTuple):
    """Shape of a block table: per block_size tokens one unit of `size` entries, first those of the groups with full
    attention, then those of the groups with a sliding window."""

    num_full: int = 1
    num_windowed: int = 0

    @property
    def size(self) -> int:
        return self.num_full + self.num_windowed


ALL_SEE_ALL = TableGroups(1, 0)
ALL_SEE_A_WINDOW = TableGroups(0, 1)


def one_group(window: int | None) -> TableGroups:
    """For layers that all have this window; None: full attention."""
    return ALL_SEE_ALL if window is None else ALL_SEE_A_WINDOW


class LayerGroups(NamedTuple):
    """group_of: the group of each layer. layers_each: layers per block; some groups may have fewer.

    In a pipeline stage, `group_of` lists its own layers, while tables and layers_each are the same in all stages, so
    that a block id means the same everywhere. A stage may have no layer of some group."""

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
        """windows: per layer of all stages (which have equally many), its window or None; one of `longest` tokens (the
        longest sequence) or more counts as None. is_parted: make several groups if layers differ.

        The group size is chosen to minimize, in this order: the layer places that hold every token; the layer places
        that no layer fills; the number of groups. With several stages, the stage with the most layers of a kind counts.
        If several groups would save nothing then, there is only one.
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
        """For each layer: (its group, its index within that group's blocks)."""
        return tuple((group, self.group_of[:layer].count(group)) for layer, group in enumerate(self.group_of))


def most_fillable_blocks(num_seqs: int, max_model_len: int, block_size: int, num_groups: int) -> int:
    """Blocks that sequences can fill: each one's full context, in every layer group. A larger cache would be idle."""
    return num_seqs * -(-max_model_len // block_size) * num_groups
