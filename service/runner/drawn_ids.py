"""The ids that sequences drew last: they stay on the device, where the next decodes read them."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.fill_pending_tokens import fill_pending_tokens


class DrawnIds:
    """The id that each sequence drew last, on the device: one per row of SequenceRows. Overlapped iterations decode
    from it, because the host learns an id only after the next iteration has been launched. All calls take effect in
    launch order, on the device's stream."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._ids = torch.zeros(num_rows, dtype=torch.int64, device=device)

    def note(self, rows: Tensor, token_ids: Tensor) -> None:
        """These rows' sequences have drawn these ids. A row that occurs several times (a prompt's choices)
        keeps any."""
        self._ids.index_copy_(0, rows, token_ids)

    def fill_in(self, token_ids: Tensor, rows: Tensor) -> None:
        """Replace PENDING_TOKEN_ID in place: token_ids[d] belongs to rows[d]. A failed draw becomes a valid id."""
        fill_pending_tokens(token_ids, rows, self._ids)

    def grow(self, num_rows: int) -> None:
        """Make room for at least `num_rows` rows."""
        if num_rows > len(self._ids):
            self._ids = torch.cat((self._ids, self._ids.new_zeros(num_rows - len(self._ids))))
