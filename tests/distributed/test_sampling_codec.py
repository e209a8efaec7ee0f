from __future__ import annotations

from dataclasses import fields

from hypothesis import given

from service.core.sampling_params import SamplingParams
from service.distributed.integers import IntegerReader, IntegerWriter
from service.distributed.sampling_codec import BY_NAME, FIELDS, read_sampling, write_sampling
from tests.distributed.plans import SAMPLING


def test_every_field_is_known_and_a_number_needs_no_line_of_its_own():
    defaults = {field.name: field.default for field in fields(SamplingParams)}
    assert list(FIELDS) == list(defaults)
    numbers = {name for name, default in defaults.items() if isinstance(default, int | float)}
    assert {"top_k", "min_p", "deterministic"} < numbers
    assert numbers.isdisjoint(BY_NAME)


@given(SAMPLING)
def test_what_is_read_is_what_was_written(sampling: SamplingParams):
    to = IntegerWriter()
    write_sampling(to, sampling)
    source = IntegerReader(to.message())
    assert read_sampling(source) == sampling
    assert source.is_at_end


def test_defaults_take_no_room():
    to = IntegerWriter()
    write_sampling(to, SamplingParams(max_tokens=5))
    assert len(to.message()) == 16
