from __future__ import annotations

import pytest
import torch

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.device_block_table import DeviceBlockTable
from service.runner.graph_inputs import DecodeInputs, MixedInputs
from service.runner.sequence_rows import NO_CHANGES, SequenceRows
from tests.runner.plans import flat, planned

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def share(sequence_id, block_ids, start=0):
    params = SamplingParams(max_tokens=1)
    return ScheduledSequence(sequence_id, sequence_id + 1, (0,), 0, start, tuple(block_ids), params, ())


NO_PROMPT = flat([share(0, ())], SequenceRows(1, 6), 4)
CHANGES = ([share(0, (4, 5)), share(1, (9,))], [], [share(0, (7,), 2), share(1, (8, 3), 0)], [share(2, (1,))])


@pytest.mark.parametrize("device", DEVICES)
def test_follows_the_rows_at_once_where_there_is_no_room_for_changes(device):
    rows = SequenceRows(3, 6)
    table = DeviceBlockTable(rows, torch.device(device))
    address = table.tensor.data_ptr()
    for changes in CHANGES:
        if changes:
            planned(changes, rows)
        assert table.take_changes(0) is NO_CHANGES or not changes
        assert table.tensor.tolist() == rows.block_table.tolist()
    assert table.tensor.data_ptr() == address


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_mixed", [False, True], ids=["decodes", "mixed"])
def test_follows_the_rows_by_what_comes_with_a_step(is_mixed, device):
    """Whatever an earlier step wrote is padding in the next one."""
    rows = SequenceRows(3, 6)
    table = DeviceBlockTable(rows, torch.device(device))
    inputs = MixedInputs(6, 1, table.tensor, 4) if is_mixed else DecodeInputs(6, table.tensor, 4)
    for changes in CHANGES:
        before = rows.block_table.tolist()
        if changes:
            planned(changes, rows)
        taken = table.take_changes(inputs.most_changes)
        assert table.tensor.tolist() == before
        inputs.fill(NO_PROMPT if is_mixed else {}, taken)
        inputs.fetch()
        table.write(inputs.table_places, inputs.table_values)
        assert table.tensor.tolist() == rows.block_table.tolist()


def test_rows_that_were_added_are_missing():
    rows = SequenceRows(1, 6)
    table = DeviceBlockTable(rows, torch.device("cpu"))
    assert table.is_complete
    for i in range(3):
        planned([share(i, (i + 1,))], rows)
    table.take_changes(0)
    assert not table.is_complete


def test_its_bytes_are_known_before():
    rows = SequenceRows(6, 12)
    table = DeviceBlockTable(rows, torch.device("cpu")).tensor
    assert DeviceBlockTable.num_bytes(rows.num_rows, 12) == table.nbytes
