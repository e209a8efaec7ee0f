from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kernels.graph_capture import capture_graph
from service.core.layer_groups import LayerGroups
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import PENDING_TOKEN_ID, Sample, ScheduledSequence
from service.runner.batch_columns import BATCH_COLUMNS
from service.runner.device_copies import to_device
from service.runner.forward_pass import attention_inputs
from service.runner.graph_inputs import FixedTensors, GraphInputs
from service.runner.graph_sizes import GraphSize, most_prompts
from service.runner.selective_batching import decode_columns
from service.runner.sequence_rows import NO_CHANGES, SequenceRows
from tests.examples import examples
from tests.runner.plans import as_decodes, flat, planned

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def decodes(*positions):
    params = SamplingParams(max_tokens=1, temperature=0.5, top_p=0.25, top_k=7)
    return [
        ScheduledSequence(i, i + 1, (40 + i,), position, 0, (2 * i + 1, 2 * i + 2), params, (Sample(i, 90 + i),))
        for i, position in enumerate(positions)
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_decodes_arrive_at_fixed_places_and_the_rest_is_padding(device):
    rows = SequenceRows(4, 2)
    table = torch.zeros(rows.block_table.shape, dtype=torch.int32, device=device)
    inputs = GraphInputs(GraphSize(4, 4), table, 4)
    step = inputs.step
    address = step.token_ids.data_ptr()
    for positions in ((5, 2), (1, 2, 3, 4), (7,)):
        values = decode_columns(planned(decodes(*positions), rows), rows, 4)
        inputs.fill_decodes(values)
        inputs.fetch()
        count, rest = len(positions), 4 - len(positions)
        decode, sampling = step.attention.decode, step.sampling.columns
        assert step.token_ids.tolist() == [*range(40, 40 + count), *[0] * rest]
        assert step.positions.tolist() == [*positions, *[0] * rest]
        assert step.attention.slots.slot_mapping.tolist() == [*values["slot_mapping"].tolist(), *[-1] * rest]
        assert decode.context_lens.tolist() == [*(p + 1 for p in positions), *[0] * rest]
        for at in (decode.rows, step.decode_rows, step.draw_rows):
            assert at.tolist() == [*range(1, 1 + count), *[0] * rest]
        assert decode.block_table is table
        assert sampling["temperature"].tolist() == [*[0.5] * count, *[0.0] * rest]
        assert sampling["top_p"].tolist() == [*[0.25] * count, *[1.0] * rest]
        assert sampling["top_k"].tolist() == [*[7] * count, *[0] * rest]
        assert sampling["seeds"].tolist() == [*range(90, 90 + count), *[0] * rest]
        assert sampling["sample_positions"].tolist() == [*(p + 1 for p in positions), *[0] * rest]
    assert step.token_ids.data_ptr() == address


def test_before_any_value_all_is_padding():
    step = GraphInputs(GraphSize(3, 3), torch.zeros(5, 2, dtype=torch.int32), 4).step
    assert step.attention.decode.context_lens.tolist() == [0, 0, 0]
    assert step.attention.slots.slot_mapping.tolist() == [-1, -1, -1]
    assert step.sampling.columns["top_p"].tolist() == [1, 1, 1]


def test_decodes_of_the_same_version_advance():
    """And no others: of another version, not one token further, or after steps that were filled in otherwise."""
    rows = SequenceRows(4, 4)
    inputs = GraphInputs(GraphSize(4, 4), torch.zeros(rows.block_table.shape, dtype=torch.int32), 4)
    first = [item._replace(token_ids=(PENDING_TOKEN_ID,)) for item in decodes(2, 5)]
    behind = [item._replace(num_computed_tokens=item.num_computed_tokens + 1, block_ids=()) for item in first]
    inputs.fill_decodes(values := decode_columns(planned(first, rows), rows, 4))
    assert not inputs.can_advance(as_decodes(behind, 1)), "nobody said whose they are"
    inputs.fill_decodes(values, version=1)
    assert not inputs.can_advance(as_decodes(behind, 2))
    assert not inputs.can_advance(as_decodes(first, 1))
    now = as_decodes(behind, 1)
    assert inputs.can_advance(now)
    rows.grow_tables(now)
    inputs.advance(now, rows, 4, NO_CHANGES)
    inputs.fetch()
    want = decode_columns(planned(behind, rows), rows, 4)
    assert inputs.step.positions.tolist() == [*want["positions"].tolist(), 0, 0]
    assert inputs.step.attention.slots.slot_mapping.tolist() == [*want["slot_mapping"].tolist(), -1, -1]
    assert inputs.step.attention.decode.context_lens.tolist() == [4, 7, 0, 0]
    assert inputs.step.sampling.columns["sample_positions"].tolist() == [4, 7, 0, 0]
    assert inputs.step.token_ids.tolist() == [PENDING_TOKEN_ID] * 2 + [0, 0]


GROUPS = LayerGroups.of((8, 8, None, 8, 8, None), 100)
"""One group of two layers that see everything, and two of layers with a window."""


def of_group(items, group):
    """The same items of a model that has this group's layers only."""
    return [item._replace(table_start=item.table_start // 3, block_ids=item.block_ids[group::3]) for item in items]


def test_each_group_of_layers_has_what_a_model_of_its_layers_alone_would_have():
    """Decodes that are filled in, decodes that advance into other blocks, and prompts: by graphs and without."""
    assert GROUPS.tables.size == 3
    chance, columns = random.Random(0), BATCH_COLUMNS.over(GROUPS)
    rows, alone = SequenceRows(8, 12, columns), [SequenceRows(8, 12) for _ in range(3)]
    table, size, decode_size = torch.from_numpy(rows.block_table), GraphSize(46, 6), GraphSize(6, 6)
    mixed, decoding = (GraphInputs(each, table, 4, columns) for each in (size, decode_size))
    of_alone = [
        [GraphInputs(each, torch.from_numpy(twin.block_table), 4) for each in (size, decode_size)] for twin in alone
    ]

    def check(got, wants):
        for layer, inputs in enumerate(got.by_layer(6)):
            want = [*wants[GROUPS.group_of[layer]].by_layer(6)][layer]
            assert inputs.slots.slot_mapping.tolist() == want.slots.slot_mapping.tolist()
            for ours, theirs in ((inputs.decode, want.decode), (inputs.prefill, want.prefill)):
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    assert torch.equal(ours.block_table, theirs.block_table)
                    assert torch.equal(ours.context_lens, theirs.context_lens)
                    assert torch.equal(ours.rows, theirs.rows)

    items = [long_share(chance, 1 + number, length) for number, length in enumerate((1, 9, 1, 4))]
    batch, batches = flat(items, rows, 4), [flat(of_group(items, g), alone[g], 4) for g in range(3)]
    there = [to_device(each.arrays(), torch.device("cpu")) for each in (batch, *batches)]
    plain = [attention_inputs(each, t, 4, only_logits=True) for each, t in zip(batches, there[1:], strict=True)]
    check(attention_inputs(batch, there[0], 4, columns, only_logits=True), plain)
    for inputs, filled in ((mixed, batch), *((of_alone[g][0], batches[g]) for g in range(3))):
        inputs.fill(filled)
        inputs.fetch()
    check(mixed.step.attention, [of_alone[g][0].step.attention for g in range(3)])
    check(mixed.step.attention.afresh(), [of_alone[g][0].step.attention for g in range(3)])

    first = [long_share(chance, row, 1)._replace(token_ids=(PENDING_TOKEN_ID,)) for row in range(1, 5)]
    pairs = [(decoding, rows, first), *((of_alone[g][1], alone[g], of_group(first, g)) for g in range(3))]
    for inputs, held, some in pairs:
        inputs.fill_decodes(decode_columns(planned(some, held), held, 4), version=1)
    for _ in range(9):
        for inputs, held, some in pairs:
            some[:] = [item._replace(num_computed_tokens=item.num_computed_tokens + 1, block_ids=()) for item in some]
            inputs.advance(as_decodes(some, 1), held, 4, NO_CHANGES)
            inputs.fetch()
        check(decoding.step.attention, [of_alone[g][1].step.attention for g in range(3)])


def long_share(chance, row, num_tokens):
    """With room for what comes behind it."""
    blocks = tuple(chance.sample(range(1, 1000), 36))
    return share(chance, row, num_tokens)._replace(block_ids=blocks)


def share(chance, row, num_tokens, samples=1):
    computed = chance.randint(0, 20)
    blocks = tuple(chance.sample(range(1, 1000), -(-(computed + num_tokens) // 4)))
    params = SamplingParams(max_tokens=1, temperature=0.1 * row, top_p=0.5, top_k=row)
    draws = tuple(Sample(row, chance.randrange(2**40)) for _ in range(samples))
    ids = tuple(chance.randrange(1, 1000) for _ in range(num_tokens))
    return ScheduledSequence(row, row, ids, computed, 0, blocks, params, draws)


@pytest.mark.parametrize("device", DEVICES)
def test_a_mixed_batch_stands_at_fixed_places_with_padding_behind_it(device):
    rows = SequenceRows(40, 12)
    table = torch.zeros(rows.block_table.shape, dtype=torch.int32, device=device)
    inputs = GraphInputs(GraphSize(46, 6), table, 4)
    step, address = inputs.step, inputs.step.token_ids.data_ptr()
    for seed in range(examples(12)):
        chance = random.Random(seed)
        lengths = [1] * chance.randint(0, 6) + [chance.randint(2, 12) for _ in range(chance.randint(1, 3))]
        chance.shuffle(lengths)
        scheduled = [share(chance, 1 + seed + i, n, chance.randint(0, 2)) for i, n in enumerate(lengths)]
        batch = flat(scheduled, rows, 4)
        inputs.fill(batch)
        inputs.fetch()
        nd, nt, nn = batch.num_decode, batch.num_tokens, batch.num_draws
        decode, prefill = step.attention.decode, step.attention.prefill
        context_lens, at = batch.sequences["context_lens"], batch.sequences["rows"]
        assert step.token_ids[:nt].tolist() == batch.tokens["token_ids"].tolist()
        assert step.positions[:nt].tolist() == batch.tokens["positions"].tolist()
        assert step.attention.slots.slot_mapping[:nt].tolist() == batch.tokens["slot_mapping"].tolist()
        assert (step.attention.slots.slot_mapping[nt:] == -1).all()
        assert decode.context_lens.tolist() == [*context_lens[:nd].tolist(), *[0] * (6 - nd)]
        assert decode.rows.tolist() == [*at[:nd].tolist(), *[0] * (6 - nd)]
        num_prompts = len(lengths) - nd
        assert prefill.context_lens.tolist()[:num_prompts] == context_lens[nd:].tolist()
        assert prefill.rows.tolist()[:num_prompts] == at[nd:].tolist()
        starts = prefill.query_starts.tolist()
        assert starts[: num_prompts + 1] == batch.query_starts[nd:].tolist()
        assert set(starts[num_prompts:]) == {nt}
        drawn_from = [row for row, num in zip(batch.logit_rows, batch.samples_per_row, strict=True) for _ in range(num)]
        assert step.attention.last.rows[:nn].tolist() == drawn_from
        last, positions = step.attention.last.decode, batch.draws["sample_positions"].tolist()
        assert last.rows[:nn].tolist() == batch.draw_rows.tolist()
        assert last.context_lens.tolist() == [*positions, *[0] * (len(last.rows) - nn)]
        assert step.draw_rows.tolist() == [*batch.draw_rows.tolist(), *[0] * (GraphSize(46, 6).most_draws - nn)]
        sampling = step.sampling.columns
        assert sampling["seeds"][:nn].tolist() == batch.draws["seeds"].tolist()
        assert sampling["top_k"][:nn].tolist() == batch.draws["top_k"].tolist()
        assert (sampling["temperature"][nn:] == 0).all()
        assert (sampling["top_p"][nn:] == 1).all()
    assert step.token_ids.data_ptr() == address


def test_the_border_between_decodes_and_prompts_moves():
    """As many tokens, few of them decodes or none: no padding but at the end."""
    chance, rows = random.Random(0), SequenceRows(60, 30)
    inputs = GraphInputs(GraphSize(24, 20), torch.zeros(rows.block_table.shape, dtype=torch.int32), 4)
    for lengths in ([1] * 20 + [4], [1, 11, 12], [24]):
        batch = flat([share(chance, 1 + i, n) for i, n in enumerate(lengths)], rows, 4)
        inputs.fill(batch)
        inputs.fetch()
        assert inputs.step.token_ids.tolist() == batch.tokens["token_ids"].tolist()
        assert inputs.step.attention.prefill.query_starts.tolist()[: len(lengths) - batch.num_decode + 1] == (
            batch.query_starts[batch.num_decode :].tolist()
        )


def test_a_step_of_prompts_alone_has_no_decodes():
    rows = SequenceRows(4, 30)
    inputs = GraphInputs(GraphSize(24, 0), torch.zeros(rows.block_table.shape, dtype=torch.int32), 4)
    assert inputs.step.attention.decode is None
    inputs.fill(flat([share(random.Random(0), 1, 20)], rows, 4))
    assert inputs.step.sampling.columns["seeds"].shape == (most_prompts(24),)


@pytest.mark.parametrize("device", DEVICES)
def test_fixed_tensors_change_what_they_hold_not_where_they_are(device):
    fixed = FixedTensors({"a": np.zeros(3, np.int64), "b": np.zeros(5, np.float32)}, torch.device(device))
    a, b = fixed["a"], fixed["b"]
    for value in (1, 2):
        fixed.write({"a": np.full(3, value), "b": np.full(5, value)})
        fixed.fetch()
        fixed.write({"a": np.full(3, 77), "b": np.full(5, 77)})  # behind the copy
        assert (a.tolist(), b.tolist()) == ([value] * 3, [value] * 5)
    assert fixed["a"].data_ptr() == a.data_ptr()


def test_padding_stands_behind_what_was_written():
    fixed = FixedTensors({"a": np.array([7, 8, 9]), "b": np.full(2, -1, np.float32)}, torch.device("cpu"))
    for values, expected in [((), [7, 8, 9]), ((1, 2, 3), [1, 2, 3]), ((4,), [4, 8, 9]), ((5, 6), [5, 6, 9])]:
        fixed.write({"a": np.array(values, np.int64)})
        assert fixed.written()["a"].tolist() == list(values)
        fixed.fetch()
        assert fixed["a"].tolist() == expected
        assert fixed["b"].tolist() == [-1, -1]


class Fetched:
    """In place of a CUDA event, behind a copy that runs when it is waited for."""

    def __init__(self):
        self.is_pending = False

    def query(self):
        return not self.is_pending

    def synchronize(self):
        self.is_pending = False

    def record(self):
        self.is_pending = True


def test_what_has_not_been_fetched_is_not_written_again():
    fixed = FixedTensors({"a": np.zeros(3, np.int64)}, torch.device("cpu"))
    fixed._fetched = Fetched()
    fixed.write({"a": np.full(3, 5)})
    fixed.fetch()
    assert fixed._fetched.is_pending
    fixed.write({})
    assert not fixed._fetched.is_pending


@pytest.mark.gpu
@pytest.mark.parametrize("is_captured", [False, True])
def test_what_the_device_has_not_fetched_yet_is_not_written_again(is_captured):
    """Steps in a row, all launched before the first begins."""
    device = torch.device("cuda")
    fixed = FixedTensors({"a": np.zeros(1000, np.int64)}, device)
    seen = torch.zeros(1000, dtype=torch.int64, device=device)

    def step():
        fixed.fetch()
        seen.add_(fixed["a"])

    step()
    torch.cuda.synchronize()
    graph = capture_graph(step, torch.cuda.Stream(device))[0] if is_captured else None
    for value in (1, 10, 100):
        fixed.write({"a": np.full(1000, value)})
        torch.cuda._sleep(10**8)
        step() if graph is None else graph.replay()
        assert fixed._fetched is not None
        assert not fixed._fetched.query()
    fixed.write({"a": np.full(1000, -1)})
    assert seen.unique().tolist() == [111]
