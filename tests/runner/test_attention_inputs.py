from __future__ import annotations

import torch

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.attention_inputs import attention_inputs
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import to_device
from tests.runner.plans import flat


def share(sequence_id, num_tokens, computed, block_ids):
    return ScheduledSequence(
        sequence_id, sequence_id + 1, (9,) * num_tokens, computed, 0, block_ids, SamplingParams(max_tokens=1), ()
    )


def inputs(*shares):
    batch = flat(shares, SequenceRows(4, 8), 4)
    return attention_inputs(batch, to_device(batch.arrays(), torch.device("cpu")), 4)


def test_a_mixed_batch_has_both_parts():
    got = inputs(share(0, 3, 2, (7, 1)), share(1, 1, 5, (2, 3)), share(2, 2, 0, (4,)))
    assert got.decode.context_lens.tolist() == [6]
    assert got.decode.block_table.tolist() == [[2, 3]]
    assert got.prefill.context_lens.tolist() == [5, 2]
    assert got.prefill.query_starts.tolist() == [1, 4, 6]
    assert got.prefill.block_table[:, 0].tolist() == [7, 4]
    assert got.prefill.max_query_len == 3
    assert got.slots.slot_mapping.tolist() == [3 * 4 + 1, 7 * 4 + 2, 7 * 4 + 3, 1 * 4, 4 * 4, 4 * 4 + 1]
    assert got.slots.kept is None


def test_a_part_without_rows_is_absent():
    assert inputs(share(0, 1, 5, (2, 3))).prefill is None
    assert inputs(share(0, 2, 0, (2,))).decode is None
