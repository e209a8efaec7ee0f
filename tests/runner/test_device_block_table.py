from __future__ import annotations

import pytest
import torch

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.device_block_table import DeviceBlockTable
from service.runner.sequence_rows import SequenceRows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def share(sequence_id, block_ids, start=0):
    params = SamplingParams(max_tokens=1)
    return ScheduledSequence(sequence_id, (0,), 0, start, tuple(block_ids), params, ())


@pytest.mark.parametrize("device", DEVICES)
def test_follows_the_rows(device):
    rows = SequenceRows(3, 6)
    table = DeviceBlockTable(rows, torch.device(device))
    address = table.tensor.data_ptr()
    for changes in ([share(0, (4, 5)), share(1, (9,))], [], [share(0, (7,), 2), share(1, (8, 3), 0)], [share(2, (1,))]):
        for change in changes:
            rows.update(change)
        table.bring_up_to_date()
        assert table.tensor.tolist() == rows.block_table.tolist()
    assert table.tensor.data_ptr() == address


def test_rows_that_were_added_are_missing():
    rows = SequenceRows(1, 6)
    table = DeviceBlockTable(rows, torch.device("cpu"))
    assert table.is_complete
    for i in range(3):
        rows.update(share(i, (i + 1,)))
    table.bring_up_to_date()
    assert not table.is_complete


def test_its_bytes_are_known_before():
    rows = SequenceRows(6, 12)
    table = DeviceBlockTable(rows, torch.device("cpu")).tensor
    assert DeviceBlockTable.num_bytes(rows.num_rows, 12) == table.nbytes
