from __future__ import annotations

import random

import pytest
import torch
from service.runner.mixed_inputs import MixedInputs

from service.core.iteration_plan import Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.graph_sizes import GraphSize, most_prompts
from service.runner.selective_batching import flatten
from service.runner.sequence_rows import SequenceRows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def share(chance, sequence_id, num_tokens, samples=1):
    computed = chance.randint(0, 20)
    blocks = tuple(chance.sample(range(1, 1000), -(-(computed + num_tokens) // 4)))
    params = SamplingParams(max_tokens=1, temperature=0.1 * sequence_id, top_p=0.5, top_k=sequence_id)
    draws = tuple(Sample(sequence_id, chance.randrange(2**40)) for _ in range(samples))
    ids = tuple(chance.randrange(1, 1000) for _ in range(num_tokens))
    return ScheduledSequence(sequence_id, ids, computed, 0, blocks, params, draws)


@pytest.mark.parametrize("device", DEVICES)
def test_the_batch_stands_at_fixed_places_with_padding_behind_it(device):
    rows = SequenceRows(40, 12)
    table = torch.zeros(rows.block_table.shape, dtype=torch.int32, device=device)
    inputs = MixedInputs(46, 6, table, 4)
    step, address = inputs.step, inputs.step.token_ids.data_ptr()
    for seed in range(12):
        chance = random.Random(seed)
        lengths = [1] * chance.randint(0, 6) + [chance.randint(2, 12) for _ in range(chance.randint(1, 3))]
        chance.shuffle(lengths)
        scheduled = [share(chance, 10 * seed + i, n, chance.randint(0, 2)) for i, n in enumerate(lengths)]
        batch = flatten(scheduled, rows, 4)
        inputs.fill(batch)
        inputs.fetch()
        nd, nt, nn = batch.num_decode, len(batch.token_ids), len(batch.seeds)
        decode, prefill = step.attention.decode, step.attention.prefill
        assert step.token_ids[:nt].tolist() == batch.token_ids.tolist()
        assert step.positions[:nt].tolist() == batch.positions.tolist()
        assert step.attention.slots.slot_mapping[:nt].tolist() == batch.slot_mapping.tolist()
        assert (step.attention.slots.slot_mapping[nt:] == -1).all()
        assert decode.context_lens.tolist() == [*batch.context_lens[:nd].tolist(), *[0] * (6 - nd)]
        assert decode.rows.tolist() == [*batch.rows[:nd].tolist(), *[0] * (6 - nd)]
        num_prompts = len(lengths) - nd
        assert prefill.context_lens.tolist()[:num_prompts] == batch.context_lens[nd:].tolist()
        assert prefill.rows.tolist()[:num_prompts] == batch.rows[nd:].tolist()
        starts = prefill.query_starts.tolist()
        assert starts[: num_prompts + 1] == batch.query_starts[nd:].tolist()
        assert set(starts[num_prompts:]) == {nt}
        drawn_from = [row for row, num in zip(batch.logit_rows, batch.samples_per_row, strict=True) for _ in range(num)]
        assert step.attention.last.rows[:nn].tolist() == drawn_from
        last = step.attention.last.decode
        assert last.rows[:nn].tolist() == batch.draw_rows.tolist()
        assert last.context_lens.tolist() == [*batch.sample_positions.tolist(), *[0] * (len(last.rows) - nn)]
        assert step.draw_rows.tolist() == [*batch.draw_rows.tolist(), *[0] * (GraphSize(46, 6).most_draws - nn)]
        assert step.sampling.seeds[:nn].tolist() == batch.seeds.tolist()
        assert step.sampling.top_k[:nn].tolist() == batch.top_k.tolist()
        assert (step.sampling.temperature[nn:] == 0).all()
    assert step.token_ids.data_ptr() == address


def test_the_border_between_decodes_and_prompts_moves():
    """As many tokens, few of them decodes or none: no padding but at the end."""
    chance, rows = random.Random(0), SequenceRows(60, 30)
    inputs = MixedInputs(24, 20, torch.zeros(rows.block_table.shape, dtype=torch.int32), 4)
    for number, lengths in enumerate(([1] * 20 + [4], [1, 11, 12], [24])):
        batch = flatten([share(chance, 100 * number + i, n) for i, n in enumerate(lengths)], rows, 4)
        inputs.fill(batch)
        inputs.fetch()
        assert inputs.step.token_ids.tolist() == batch.token_ids.tolist()
        assert inputs.step.attention.prefill.query_starts.tolist()[: len(lengths) - batch.num_decode + 1] == (
            batch.query_starts[batch.num_decode :].tolist()
        )


def test_a_step_of_prompts_alone_has_no_decodes():
    rows = SequenceRows(4, 30)
    inputs = MixedInputs(24, 0, torch.zeros(rows.block_table.shape, dtype=torch.int32), 4)
    assert inputs.step.attention.decode is None
    inputs.fill(flatten([share(random.Random(0), 1, 20)], rows, 4))
    assert inputs.step.sampling.seeds.shape == (most_prompts(24),)
