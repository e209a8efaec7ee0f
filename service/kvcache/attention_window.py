"""Sliding-window attention: when a sequence can give blocks back.

In layers with a sliding window, a sequence needs the blocks of its last tokens only, however long it becomes. Layers
with full attention, if there are any, have blocks of their own (core/layer_groups.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.core.layer_groups import ALL_SEE_A_WINDOW, LayerGroups, TableGroups


class AttentionWindow(NamedTuple):
    """num_tokens: the most tokens that a query sees, itself included; of the layer with the largest window. most_new:
    the most tokens of one sequence that the iterations in flight and the next one compute; what these see is kept until
    they end. groups: shape of the block tables."""

    num_tokens: int
    most_new: int
    groups: TableGroups = ALL_SEE_A_WINDOW

    @classmethod
    def of_layers(
        cls, groups: LayerGroups, windows: Sequence[int | None], longest: int, most_new: int
    ) -> AttentionWindow | None:
        """None if no group has a window. windows: per layer. longest: the most tokens of a sequence."""
        if not groups.tables.num_windowed:
            return None
        return cls(max(each for each in windows if each is not None and each < longest), most_new, groups.tables)

    def of_decodes(self) -> AttentionWindow:
        """The same for sequences that only decode, one token at a time."""
        return self._replace(most_new=1)

    def first_unit(self, position: int, block_size: int) -> int:
        """First unit of the table that a query at `position` or later sees through the window."""
        return max(0, position + 1 - self.num_tokens) // block_size

    def most_units(self, block_size: int) -> int:
        """The most units whose windowed blocks a sequence holds at once."""
        return -(-(self.num_tokens - 1 + self.most_new) // block_size) + 1

    def most_held(self, num_units: int, block_size: int, num_left_behind: int = 0) -> int:
        """The most blocks that a sequence of `num_units` units holds at once, if its windowed groups never need the
        first `num_left_behind` units."""
        num_seen = min(num_units - num_left_behind, self.most_units(block_size))
        return num_units * self.groups.num_full + num_seen * self.groups.num_windowed
