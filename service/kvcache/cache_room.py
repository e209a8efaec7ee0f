"""How many tokens and sequences fit a KV cache, computed from sizes alone, before there is one."""

from __future__ import annotations

from typing import NamedTuple

from service.core.layer_groups import ALL_SEE_ALL, TableGroups
from service.kvcache.attention_window import AttentionWindow


class CacheRoom(NamedTuple):
    """num_blocks: in the pool; each holds block_size tokens of one layer group. window: None if no group has one."""

    num_blocks: int
    block_size: int
    window: AttentionWindow | None = None

    @property
    def groups(self) -> TableGroups:
        return ALL_SEE_ALL if self.window is None else self.window.groups

    @property
    def num_tokens(self) -> int:
        """Tokens that fit if no sequence has given blocks back yet: short sequences, or prompts."""
        return self.num_blocks // self.groups.size * self.block_size

    @property
    def longest_sequence(self) -> int | None:
        """The longest sequence that fits alone; None: any length, since all layers have a window."""
        num_units = self.num_blocks // self.groups.size
        if self.window is not None and self.window.most_units(self.block_size) <= num_units:
            if not self.groups.num_full:
                return None
            of_windows = self.window.most_units(self.block_size) * self.groups.num_windowed
            num_units = (self.num_blocks - of_windows) // self.groups.num_full
        return num_units * self.block_size

    def num_sequences(self, num_tokens: int) -> int:
        """How many sequences of `num_tokens` tokens fit if all decode but one, whose prompt is being computed, which
        takes more blocks than a decode."""
        num_units = -(-num_tokens // self.block_size)
        if self.window is None:
            return self.num_blocks // num_units
        of_prompt = self.window.most_held(num_units, self.block_size)
        if of_prompt > self.num_blocks:
            return 0
        return 1 + (self.num_blocks - of_prompt) // self.window.of_decodes().most_held(num_units, self.block_size)
