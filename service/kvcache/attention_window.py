"""Where every layer of a model sees a sliding window of tokens only, nobody needs what lies before it.

So a sequence holds the blocks of its last tokens, however long it becomes. vLLM and SGLang have the same for a group of
layers. Here a block holds all layers: where one of them sees everything, nothing can be given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class AttentionWindow(NamedTuple):
    """num_tokens: that a query sees at most, its own included, in the layer that sees furthest. most_new: tokens of one
    sequence that iterations which run, and the next one, compute at most: what these see is held until they end."""

    num_tokens: int
    most_new: int

    @classmethod
    def of_layers(cls, windows: Sequence[int | None], longest: int, most_new: int) -> AttentionWindow | None:
        """None if some layer sees all tokens, of which a sequence has `longest` at most. windows: each layer's."""
        widest = max((longest if window is None else window for window in windows), default=longest)
        return None if widest >= longest else cls(widest, most_new)

    def first_block(self, position: int, block_size: int) -> int:
        """The first block that a query at `position`, or behind it, sees."""
        return max(0, position + 1 - self.num_tokens) // block_size

    def most_blocks(self, block_size: int) -> int:
        """That a sequence holds at once."""
        return -(-(self.num_tokens - 1 + self.most_new) // block_size) + 1
