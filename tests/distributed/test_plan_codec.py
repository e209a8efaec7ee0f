from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings

from service.core.iteration import NOTHING_GROWN, IterationPlan, ScheduledDecodes
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.distributed.plan_codec import BATCHES_REMEMBERED, PlanDecoder, PlanEncoder
from tests.complexity.growth import MOST_GROWTH, Work, WorstInput, least_growth
from tests.distributed.plans import Masks, histories, is_same
from tests.examples import examples


@settings(max_examples=examples(80), deadline=None)
@given(histories())
def test_what_is_decoded_is_what_was_encoded_in_every_field(history: list[IterationPlan]):
    encoder, decoder = PlanEncoder(), PlanDecoder(Masks)
    messages = [encoder.encode(plan) for plan in history]
    decoded = [decoder.decode(message) for message in messages]
    for plan, again in zip(history, decoded, strict=True):
        assert is_same(plan, again), (plan, again)


def test_the_law_covers_every_field_of_a_plan():
    """A new one must be drawn in tests/distributed/plans.py, and encoded."""
    assert [field.name for field in fields(IterationPlan)] == [
        "scheduled", "copies", "released", "transfers", "awaits_transfer", "masks", "decodes", "adapter_loads",
        "training",
    ]  # fmt: skip
    assert len(ScheduledSequence._fields) == 12


def of_decodes(num: int, version: int = 1, position: int = 0) -> IterationPlan:
    ones = np.ones(num, np.int64)
    places = np.arange(num)
    decodes = ScheduledDecodes(
        version, places, places + 1, places * 7, np.full(num, position), ones, num, NOTHING_GROWN
    )
    return IterationPlan((), decodes=decodes)


def test_decodes_that_go_on_are_a_few_bytes_however_many_they_are():
    encoder, decoder = PlanEncoder(), PlanDecoder(Masks)
    first = encoder.encode(of_decodes(1000))
    again = [encoder.encode(of_decodes(1000, position=position)) for position in range(1, 20)]
    assert len(first) > 1000 * 8
    assert max(map(len, again)) <= 16
    decoder.decode(first)
    for position, message in enumerate(again, 1):
        assert is_same(decoder.decode(message), of_decodes(1000, position=position))


def test_batches_that_take_turns_are_remembered_and_no_more_than_a_few():
    encoder = PlanEncoder()
    for version in range(BATCHES_REMEMBERED):
        encoder.encode(of_decodes(100, version))
    assert max(len(encoder.encode(of_decodes(100, version, 1))) for version in range(BATCHES_REMEMBERED)) <= 16
    encoder.encode(of_decodes(100, BATCHES_REMEMBERED))
    assert len(encoder.encode(of_decodes(100, 0, 2))) > 100


def one_sequence(sampling: SamplingParams, row: int = 3, num_tokens: int = 1) -> IterationPlan:
    item = ScheduledSequence(5, row, (1,) * num_tokens, 0, 0, (), sampling, (Sample(5, 7),))
    return IterationPlan((item,))


def test_a_sequence_brings_its_parameters_once_until_its_row_is_released():
    large = SamplingParams(max_tokens=9, allowed_token_ids=tuple(range(5000)))
    encoder = PlanEncoder()
    sizes = [len(encoder.encode(one_sequence(large))) for _ in range(3)]
    assert sizes[0] > 5000 * 8
    assert sizes[1] == sizes[2] < 200
    encoder.encode(IterationPlan((), released=(3,)))
    assert len(encoder.encode(one_sequence(large))) > 5000 * 8


def test_a_decoder_that_has_missed_a_message_says_so():
    encoder, decoder = PlanEncoder(), PlanDecoder(Masks)
    encoder.encode(of_decodes(3))
    with pytest.raises(ValueError, match="were never sent"):
        decoder.decode(encoder.encode(of_decodes(3, position=1)))
    sampling = SamplingParams(max_tokens=1)
    encoder.encode(one_sequence(sampling))
    with pytest.raises(ValueError, match="were never sent"):
        decoder.decode(encoder.encode(one_sequence(sampling)))


def test_a_message_that_is_cut_or_lengthened_is_refused():
    message = PlanEncoder().encode(one_sequence(SamplingParams(max_tokens=1)))
    for damaged in (message[:-8], message + bytes(8)):
        with pytest.raises(ValueError, match="control message"):
            PlanDecoder(Masks).decode(damaged)


def test_time_grows_with_the_plan():
    def encode_and_decode(num_tokens: int) -> Work:
        sampling = SamplingParams(max_tokens=1, logit_bias=((1, 1.0),) * num_tokens)
        plan = one_sequence(sampling, num_tokens=num_tokens)
        return lambda: PlanDecoder(Masks).decode(PlanEncoder().encode(plan))

    row = WorstInput("a plan", ("distributed/plan_codec.py",), encode_and_decode, 5_000, 80_000, "pool")
    assert least_growth(row) < MOST_GROWTH
