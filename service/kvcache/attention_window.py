"""Where layers of a model see a sliding window of tokens only, nobody needs what they keep of those before it.

So of these layers a sequence holds the blocks of its last tokens, however long it becomes. Layers that see everything
have blocks of their own (core/layer_groups.py), or there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.core.layer_groups import ALL_SEE_A_WINDOW, LayerGroups, TableGroups


class AttentionWindow(NamedTuple):
    """num_tokens: that a query sees at most, its own included, in the layer with a window that sees furthest. most_new:
    tokens of one sequence that iterations which run, and the next one, compute at most: what these see is held until
    they end. groups: of the tables."""

    num_tokens: int
    most_new: int
    groups: TableGroups = ALL_SEE_A_WINDOW

    @classmethod
    def of_layers(
        cls, groups: LayerGroups, windows: Sequence[int | None], longest: int, most_new: int
    ) -> AttentionWindow | None:
        """None if no group gives anything back. windows: each layer's. longest: tokens that a sequence has at most."""
        if not groups.tables.num_windowed:
            return None
        return cls(max(each for each in windows if each is not None and each < longest), most_new, groups.tables)

    def of_decodes(self) -> AttentionWindow:
        """The same for sequences that only decode, one token at a time."""
        return self._replace(most_new=1)

    def first_unit(self, position: int, block_size: int) -> int:
        """The first unit of a table that a query at `position`, or behind it, sees through the window."""
        return max(0, position + 1 - self.num_tokens) // block_size

    def most_units(self, block_size: int) -> int:
        """Of which a sequence holds the blocks of groups with a window at once."""
        return -(-(self.num_tokens - 1 + self.most_new) // block_size) + 1

    def most_held(self, num_units: int, block_size: int, num_left_behind: int = 0) -> int:
        """Blocks that a sequence holds at most at once, which fills so many units, and whose groups with a window never
        need the first `num_left_behind` of them."""
        num_seen = min(num_units - num_left_behind, self.most_units(block_size))
        return num_units * self.groups.num_full + num_seen * self.groups.num_windowed
