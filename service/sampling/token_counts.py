"""How often each token occurs in a sequence: the input of the penalties (kernels/apply_penalties.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.apply_penalties import count_tokens

_FIRST_SLOTS = 8


class TokenCounts:
    """One slot per sequence with penalties: a row of vocab_size counts. Grows with the number of live sequences.

    table: [slots, vocab_size] int32 on `device`. `take` may replace it by a larger tensor.

    A count is 2 * (times generated) + (1 if the token is in the prompt).
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.table = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._free: list[int] = []

    @staticmethod
    def num_bytes(num_slots: int, vocab_size: int) -> int:
        """Bytes of a table with `num_slots` slots."""
        return num_slots * vocab_size * torch.int32.itemsize

    def take(self) -> int:
        """A slot with all counts zero."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.table[slot].zero_()
        return slot

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def note_prompt(self, slot: int, token_ids: Tensor) -> None:
        """Mark prompt tokens. token_ids [M] int64."""
        counts = self.table[slot]
        counts[token_ids] = counts[token_ids] | 1

    def note_generated(self, slot: int, token_ids: Tensor) -> None:
        """Count generated tokens. token_ids [M] int64."""
        self.table[slot].index_add_(0, token_ids, torch.full_like(token_ids, 2, dtype=torch.int32))

    def note_one_each(self, slots: Tensor, token_ids: Tensor) -> None:
        """Count one generated token per slot. slots [N] int32, unique; token_ids [N] int64."""
        count_tokens(self.table, slots, token_ids)

    def _grow(self) -> None:
        old = len(self.table)
        added = max(_FIRST_SLOTS, old)
        self.table = torch.cat((self.table, self.table.new_zeros((added, self.table.shape[1]))))
        self._free.extend(range(old, old + added))
