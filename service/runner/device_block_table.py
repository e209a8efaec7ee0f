"""The block table on the device, where only the entries that changed are sent (most steps change one row in 16)."""

from __future__ import annotations

import torch
from torch import Tensor

from service.runner.sequence_rows import NO_CHANGES, SequenceRows, TableChanges
from service.runner.staging import to_device


class DeviceBlockTable:
    """A copy of the sequence rows' block table. tensor [rows, max_blocks] int32, at one address for good.

    It has the rows that there were when it was made; those that were added later are not in it.
    """

    def __init__(self, rows: SequenceRows, device: torch.device) -> None:
        self._rows = rows
        self.tensor = torch.zeros(rows.block_table.shape, dtype=torch.int32, device=device)

    @staticmethod
    def num_bytes(num_rows: int, max_blocks: int) -> int:
        return num_rows * max_blocks * torch.int32.itemsize

    @property
    def is_complete(self) -> bool:
        return len(self._rows.block_table) == len(self.tensor)

    def take_changes(self, most: int) -> TableChanges:
        """The changes that the next step has to `write`. If they are more than `most`, they are written here and now,
        and none are left."""
        changes = self._rows.take_changes(self.tensor.shape[0])
        if len(changes.places) <= most:
            return changes
        there = to_device(changes._asdict(), self.tensor.device)
        self.write(there["places"], there["values"])
        return NO_CHANGES

    def write(self, places: Tensor, values: Tensor) -> None:
        """places, values: TableChanges on the device."""
        self.tensor.view(-1).scatter_(0, places, values)
