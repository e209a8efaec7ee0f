"""One line of the definition brings a number from the request to the draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.runner.batch_columns import BATCH_COLUMNS, BatchColumns, Column, Per
from service.runner.device_copies import to_device
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize
from service.runner.selective_batching import PlanColumns, decode_columns, flatten
from service.runner.sequence_rows import SequenceRows
from tests.runner.plans import planned

MADE_UP = Column("stop_margin", Per.DRAW, np.float32, padding=-7, of=lambda item: item.sampling.seed / 2)


def with_made_up(per: Per) -> BatchColumns:
    return BatchColumns((*BATCH_COLUMNS, Column(MADE_UP.name, per, np.float32, MADE_UP.padding, MADE_UP.of)))


def scene(columns: BatchColumns, *num_tokens: int, min_p: float = 0.0) -> tuple[SequenceRows, PlanColumns]:
    """Sequence number i, from 1 on, has the seed 2 * i, and so a margin of i."""
    rows = SequenceRows(8, 4, columns)
    params = [SamplingParams(max_tokens=9, seed=2 * i, min_p=min_p) for i in range(1, 1 + len(num_tokens))]
    sequences = [
        ScheduledSequence(i, i, (5,) * num, 3, 0, (i, i), sampling, (Sample(i, i),))
        for i, (num, sampling) in enumerate(zip(num_tokens, params, strict=True), 1)
    ]
    return rows, planned(sequences, rows)


def test_a_column_of_one_line_arrives_in_a_decode_graphs_inputs():
    rows, plan = scene(columns := with_made_up(Per.DRAW), 1, 1, 1)
    inputs = GraphInputs(GraphSize(5, 5), torch.zeros(rows.block_table.shape, dtype=torch.int32), 4, columns)
    margin = inputs.step.sampling.columns[MADE_UP.name]
    assert margin.tolist() == [-7] * 5
    inputs.fill_decodes(decode_columns(plan, rows, 4))
    inputs.fetch()
    assert margin.tolist() == [1, 2, 3, -7, -7]


def test_and_in_a_mixed_graphs_inputs():
    rows, plan = scene(columns := with_made_up(Per.DRAW), 1, 2, 1)
    inputs = GraphInputs(GraphSize(20, 4), torch.zeros(rows.block_table.shape, dtype=torch.int32), 4, columns)
    margin = inputs.step.sampling.columns[MADE_UP.name]
    assert set(margin.tolist()) == {-7}
    batch = flatten(plan, rows, 4)
    inputs.fill(batch)
    inputs.fetch()
    assert margin.tolist() == [1, 2, 3, *[-7] * (len(margin) - 3)]


@pytest.mark.parametrize("per", [Per.DRAW, Per.ASKING_DRAW])
def test_and_in_an_eager_batch(per):
    rows, plan = scene(with_made_up(per), 1, 2, 1, min_p=0.1)
    batch = flatten(plan, rows, 4)
    tensors = to_device(batch.arrays(), torch.device("cpu"))
    assert tensors[MADE_UP.name].tolist() == [1, 2, 3]
    assert tensors[MADE_UP.name].dtype == torch.float32


def test_a_column_of_tokens_or_sequences_arrives_too():
    rows, plan = scene(with_made_up(Per.TOKEN), 1, 3, 1)
    batch = flatten(plan, rows, 4)
    assert batch.tokens[MADE_UP.name].tolist() == [1, 3, 2, 2, 2], "in the order of the batch"
    columns = with_made_up(Per.SEQUENCE)
    rows, plan = scene(columns, 1, 3, 1)
    assert flatten(plan, rows, 4).sequences[MADE_UP.name].tolist() == [1, 3, 2]
    inputs = GraphInputs(GraphSize(20, 4), torch.zeros(rows.block_table.shape, dtype=torch.int32), 4, columns)
    assert inputs._fixed["prompt_stop_margin"][0] == -7


def test_what_only_few_ask_for_is_left_out_where_nobody_does():
    rows = SequenceRows(8, 4)
    plain = ScheduledSequence(1, 1, (5,), 3, 0, (1,), SamplingParams(max_tokens=9), (Sample(1, 1),))
    assert "min_p" not in flatten(planned([plain], rows), rows, 4).draws
    asking = plain._replace(sequence_id=2, row=2, sampling=SamplingParams(max_tokens=9, min_p=0.5))
    assert flatten(planned([plain, asking], rows), rows, 4).draws["min_p"].tolist() == [0, 0.5]


def test_every_column_has_a_name_of_its_own_and_padding_that_its_type_holds():
    names = [column.name for column in BATCH_COLUMNS]
    assert len(set(names)) == len(names)
    for column in BATCH_COLUMNS:
        assert column.padded(3).tolist() == [column.padding] * 3
        assert column.padded(3).dtype == column.dtype
