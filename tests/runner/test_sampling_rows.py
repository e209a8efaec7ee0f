"""What the executor keeps of sequences that ask for more, fed with shares of iterations as the scheduler cuts them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from service.core.iteration import NO_DECODES, IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.runner import sampling_rows
from service.runner.sampling_rows import SamplingRows, _forbidden_now
from service.runner.selective_batching import flatten, plan_columns
from service.runner.sequence_rows import SequenceRows
from tests.runner.plans import as_decodes

VOCAB = 40
CPU = torch.device("cpu")


class Stage:
    """The rows and what feeds them, as the model runner does."""

    def __init__(self) -> None:
        self.rows = SequenceRows(8, 64)
        self.sampling = SamplingRows(self.rows, VOCAB, CPU)

    def run(self, *shares, decodes=NO_DECODES, token_ids=()):
        """token_ids: of the decodes, which are pending."""
        columns = plan_columns(IterationPlan(shares, decodes=decodes), self.rows)
        batch = flatten(columns, self.rows, 4)
        ids = batch.tokens["token_ids"]
        ids[batch.token_starts[: len(token_ids)]] = token_ids
        self.sampling.update(shares, columns, batch, torch.from_numpy(ids))
        return self.sampling.extras(batch, self.sampling.asked_tokens(batch))

    def release(self, sequence_id):
        self.sampling.release(sequence_id % 7 + 1)


def share(sequence_id, ids, computed=0, past=None, num_draws=1, **sampling):
    params = SamplingParams(max_tokens=99, **sampling)
    blocks = tuple(range(16)) if computed == 0 or past is not None else ()
    samples = tuple(Sample(sequence_id + i, i) for i in range(num_draws))
    return ScheduledSequence(
        sequence_id, sequence_id % 7 + 1, tuple(ids), computed, 0 if blocks else 1, blocks, params, samples, past
    )


def counts_of(stage, extras, draw=0):
    """id -> (in the prompt?, times generated)"""
    counts = extras.penalties.token_counts[extras.penalties.slots[draw]]
    return {int(i): (bool(counts[i] & 1), int(counts[i] // 2)) for i in counts.nonzero()[:, 0]}


def test_counts_grow_with_what_is_computed():
    stage = Stage()
    stage.run(share(1, (5, 6), past=Past((), 3), num_draws=0, presence_penalty=1.0))
    stage.run(share(1, (6,), 2, presence_penalty=1.0))
    extras, _ = stage.run(share(1, (6,), 3, presence_penalty=1.0))
    assert counts_of(stage, extras) == {5: (True, 0), 6: (True, 1)}
    extras, _ = stage.run(share(1, (9,), 4, presence_penalty=1.0), share(2, (1,)))
    assert counts_of(stage, extras) == {5: (True, 0), 6: (True, 1), 9: (False, 1)}
    assert extras.penalties.slots.tolist()[1] == -1


@pytest.mark.parametrize("at", range(1, 8))
def test_counts_are_the_same_however_the_sequence_comes_in(at):
    """By a prefix hit, from the host, as a fork, recomputed: a past and the rest."""
    ids, num_prompt = (5, 6, 5, 7, 8, 8, 7, 5), 4
    want = {5: (True, 1), 6: (True, 0), 7: (True, 1), 8: (False, 2)}
    stage = Stage()
    extras, _ = stage.run(share(1, ids[at:], at, Past(ids[:at], num_prompt), frequency_penalty=0.1))
    assert counts_of(stage, extras) == want
    stage.release(1)
    extras, _ = stage.run(share(1, ids, 0, Past((), num_prompt), frequency_penalty=0.1))
    assert counts_of(stage, extras) == want
    assert len(stage.sampling) == 1


def test_the_choices_of_a_prompt_are_drawn_with_its_counts():
    stage = Stage()
    extras, asked = stage.run(
        share(1, (5, 6), past=Past((), 2), num_draws=3, repetition_penalty=1.1, num_logprobs=2), share(9, (1, 2))
    )
    assert extras.penalties.slots.tolist() == [0, 0, 0, -1] or len(set(extras.penalties.slots[:3].tolist())) == 1
    assert counts_of(stage, extras, 2) == {5: (True, 0), 6: (True, 0)}
    assert asked == [2, 2, 2, None]
    assert extras.num_top == 8


def bias_of(extras, row=0):
    if extras.bias is None:
        return {}
    entries = zip(*(t.tolist() for t in (extras.bias.rows, extras.bias.token_ids, extras.bias.values)), strict=True)
    pairs = [(token, value) for at, token, value in entries if at == row]
    assert len(dict(pairs)) == len(pairs), "no token twice"
    return dict(pairs)


def test_bias_and_single_bad_words_hold_at_every_draw():
    stage = Stage()
    how = {"logit_bias": ((3, 2.0), (4, -1.0)), "bad_words": ((4,), (5,))}
    for ids, computed, past in [((7, 8), 0, Past((), 2)), ((9,), 2, None)]:
        extras, _ = stage.run(share(1, ids, computed, past, **how))
        assert bias_of(extras) == {3: 2.0, 4: -math.inf, 5: -math.inf}


def test_min_tokens_forbid_what_ends():
    stage = Stage()
    how = {"min_tokens": 2, "stop_token_ids": frozenset({2, 3}), "logit_bias": ((3, 5.0),)}
    forbidden = {2: -math.inf, 3: -math.inf}
    assert bias_of(stage.run(share(1, (7, 8), 0, Past((), 2), **how))[0]) == forbidden
    assert bias_of(stage.run(share(1, (9,), 2, **how))[0]) == forbidden
    assert bias_of(stage.run(share(1, (9,), 3, **how))[0]) == {3: 5.0}


def test_bad_words_of_several_tokens_forbid_their_last_after_the_others():
    """Only generated tokens count, as a prompt may say what it likes."""
    stage = Stage()
    how = {"bad_words": ((7, 8, 9), (8, 3), (8, 9))}
    assert bias_of(stage.run(share(1, (7, 8), 0, Past((), 2), **how))[0]) == {}
    assert bias_of(stage.run(share(1, (7,), 2, **how))[0]) == {}
    assert bias_of(stage.run(share(1, (8,), 3, **how))[0]) == {3: -math.inf, 9: -math.inf}
    assert bias_of(stage.run(share(1, (3,), 4, **how))[0]) == {}
    stage.release(1)
    back = share(1, (8,), 3, Past((7, 8, 7), 2), **how)
    assert bias_of(stage.run(back)[0]) == {3: -math.inf, 9: -math.inf}


def test_allowed_ids_are_bits():
    stage = Stage()
    extras, _ = stage.run(share(1, (7, 8), allowed_token_ids=(0, 31, 32, 39)), share(2, (7,)))
    (mask,) = extras.bitmasks
    assert mask.mask_rows.tolist() == [0, -1]
    bits = [t for t in range(VOCAB) if int(mask.bitmask[0, t // 32]) >> (t % 32) & 1]
    assert bits == [0, 31, 32, 39]


def test_what_nobody_asks_for_is_not_there():
    extras, asked = Stage().run(share(1, (7, 8), min_p=0.1))
    assert (extras.penalties, extras.bias, extras.bitmasks, extras.num_top) == (None, None, (), None)
    assert extras.has_min_p
    assert asked == [None]


def test_releasing_gives_the_slot_back():
    stage = Stage()
    for sequence_id in range(50):
        stage.run(share(sequence_id, (7,), 0, Past((), 1), presence_penalty=1.0))
        stage.release(sequence_id)
        stage.release(sequence_id)
    extras, _ = stage.run(share(99, (7,), 0, Past((), 1), presence_penalty=1.0))
    assert len(extras.penalties.token_counts) == 8
    assert len(stage.sampling) == 1


def test_a_row_taken_over_without_a_release_is_the_others_alone():
    """As after a launch that failed: by one that asks as well, by one that looks back, and by one that is plain."""
    stage = Stage()
    stage.run(share(1, (5, 6), past=Past((), 2), presence_penalty=1.0, bad_words=((3,), (5, 6))))
    extras, _ = stage.run(share(8, (9,), past=Past((), 1), frequency_penalty=1.0))
    assert counts_of(stage, extras) == {9: (True, 0)}
    assert extras.bias is None
    extras, asked = stage.run(share(15, (7,), num_logprobs=1))
    assert (extras.penalties, asked) == (None, [1])
    stage.run(share(1, (5, 6), past=Past((), 2), presence_penalty=1.0))
    extras, _ = stage.run(share(8, (9,)), share(2, (4,), min_p=0.1))
    assert extras.penalties is None, "the first is plain"
    extras, _ = stage.run(share(8, (9,), 1), share(2, (4,), 1, min_p=0.1))
    assert extras.penalties is None
    extras, _ = stage.run(share(1, (6,), past=Past((), 1), presence_penalty=1.0))
    assert counts_of(stage, extras) == {6: (True, 0)}
    stage.release(1)
    stage.release(2)
    assert len(stage.sampling) == 0


def test_a_whole_table_that_changes_changes_no_counts():
    """Copy-on-write of the first block: no past comes, for the sequence is known."""
    stage = Stage()
    how = {"presence_penalty": 1.0, "min_tokens": 3, "stop_token_ids": frozenset({2})}
    stage.run(share(1, (5, 6), past=Past((), 2), **how))
    moved = share(1, (7,), 2, **how)._replace(table_start=0, block_ids=(4, 5, 6))
    extras, _ = stage.run(moved)
    assert counts_of(stage, extras) == {5: (True, 0), 6: (True, 0), 7: (False, 1)}
    assert bias_of(extras) == {2: -math.inf}


def test_steady_decodes_are_counted_and_restricted_as_others_are():
    """By their rows alone, though they are no objects."""
    stage, twin = Stage(), Stage()
    how = [
        {"presence_penalty": 1.0, "num_logprobs": 2},
        {},
        {"frequency_penalty": 0.5, "logit_bias": ((3, 2.0),), "min_p": 0.2},
        {"allowed_token_ids": (1, 2)},
    ]
    first = [share(i, (5, 6 + i), past=Past((), 2), **each) for i, each in enumerate(how)]
    for each in (stage, twin):
        each.run(*first)
    for step in range(3):
        now = [share(i, (7 + i,), 2 + step, **each)._replace(block_ids=()) for i, each in enumerate(how)]
        got, asked = stage.run(decodes=as_decodes(now, 1), token_ids=[7, 8, 9, 10])
        want, asked_by_twin = twin.run(*now)
        assert asked == asked_by_twin
        for draw in (0, 2):
            assert counts_of(stage, got, draw) == counts_of(twin, want, draw)
        assert got.penalties.slots.tolist() == want.penalties.slots.tolist()
        assert [bias_of(got, draw) for draw in range(4)] == [{}, {}, {3: 2.0}, {}]
        assert got.bitmasks[0].mask_rows.tolist() == want.bitmasks[0].mask_rows.tolist() == [-1, -1, -1, 0]
        assert (got.has_min_p, got.num_top) == (want.has_min_p, want.num_top)


def test_rows_taken_over_without_a_release_keep_no_slots():
    stage = Stage()
    for sequence_id in range(0, 350, 7):  # of one row
        extras, _ = stage.run(share(sequence_id, (7,), 0, Past((), 1), presence_penalty=1.0))
    assert len(extras.penalties.token_counts) == 8
    assert len(stage.sampling) == 1


@pytest.mark.parametrize("place", ["_make_row", "_forbidden_now"])
def test_a_fault_at_one_sequence_lets_it_draw_nothing_and_no_other_less(place, monkeypatch):
    of_row = place == "_make_row"
    owner, original = (SamplingRows, SamplingRows._make_row) if of_row else (sampling_rows, _forbidden_now)

    def fail_for_the_first(*arguments):
        sampling = arguments[1].sampling if of_row else arguments[0].sampling
        if sampling.seed == 7:
            raise KeyError(7)
        return original(*arguments)

    monkeypatch.setattr(owner, place, fail_for_the_first)
    stage = Stage()
    extras, _ = stage.run(
        share(0, [1, 2], seed=7, allowed_token_ids=(3,), past=Past((), 2)),
        share(1, [4, 5], allowed_token_ids=(6,), past=Past((), 2)),
    )
    (mask,) = extras.bitmasks
    bits = [mask.bitmask[int(row)].numpy().view("uint8") for row in mask.mask_rows]
    assert [np.nonzero(np.unpackbits(each, bitorder="little"))[0].tolist() for each in bits] == [[], [6]]
