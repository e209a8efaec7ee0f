from __future__ import annotations

import pytest
import torch
from service.runner.decode_inputs import DecodeInputs
from service.runner.decode_rows import decode_rows

from service.core.iteration_plan import Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.sequence_rows import SequenceRows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def decodes(*positions):
    params = SamplingParams(max_tokens=1, temperature=0.5, top_p=0.25, top_k=7)
    return [
        ScheduledSequence(i, (40 + i,), position, 0, (2 * i + 1, 2 * i + 2), params, (Sample(i, 90 + i),))
        for i, position in enumerate(positions)
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_values_arrive_at_fixed_places_and_the_rest_is_padding(device):
    rows = SequenceRows(4, 2)
    table = torch.zeros(rows.block_table.shape, dtype=torch.int32, device=device)
    inputs = DecodeInputs(4, table, 4)
    step = inputs.step
    address = step.token_ids.data_ptr()
    for positions in ((5, 2), (1, 2, 3, 4), (7,)):
        values = decode_rows(decodes(*positions), rows, 4)
        inputs.fill(values)
        inputs.fetch()
        count, rest = len(positions), 4 - len(positions)
        decode, sampling = step.attention.decode, step.sampling
        assert step.token_ids.tolist() == [*range(40, 40 + count), *[0] * rest]
        assert step.positions.tolist() == [*positions, *[0] * rest]
        assert step.attention.slots.slot_mapping.tolist() == [*values.slots.tolist(), *[-1] * rest]
        assert decode.context_lens.tolist() == [*(p + 1 for p in positions), *[0] * rest]
        assert (
            decode.rows.tolist()
            == step.decode_rows.tolist()
            == step.draw_rows.tolist()
            == [*values.rows.tolist(), *[0] * rest]
        )
        assert decode.block_table is table
        assert sampling.temperature.tolist() == [*[0.5] * count, *[0.0] * rest]
        assert sampling.top_p.tolist() == [*[0.25] * count, *[1.0] * rest]
        assert sampling.top_k.tolist() == [*[7] * count, *[0] * rest]
        assert sampling.seeds.tolist() == [*range(90, 90 + count), *[0] * rest]
        assert sampling.positions.tolist() == [*(p + 1 for p in positions), *[0] * rest]
    assert step.token_ids.data_ptr() == address


def test_before_any_value_all_is_padding():
    step = DecodeInputs(3, torch.zeros(5, 2, dtype=torch.int32), 4).step
    assert step.attention.decode.context_lens.tolist() == [0, 0, 0]
    assert step.attention.slots.slot_mapping.tolist() == [-1, -1, -1]
