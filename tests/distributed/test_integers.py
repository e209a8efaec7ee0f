from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.distributed.integers import IntegerReader, IntegerWriter
from tests.distributed.plans import INTEGERS


@given(INTEGERS, st.lists(INTEGERS), st.lists(INTEGERS), st.floats())
def test_what_is_read_is_what_was_written(one: int, many: list[int], column: list[int], real: float):
    to = IntegerWriter()
    to.one(one)
    to.many(many)
    to.column(np.array(column, np.int64))
    to.real(real)
    source = IntegerReader(to.message())
    assert (source.one(), source.many(), source.column().tolist()) == (one, tuple(many), column)
    again = source.real()
    assert again == real or (math.isnan(again) and math.isnan(real))
    assert math.copysign(1, again) == math.copysign(1, real)
    assert source.is_at_end


@pytest.mark.parametrize("read", [IntegerReader.one, IntegerReader.many, IntegerReader.column])
def test_beyond_the_end_there_is_nothing(read):
    for message in (b"", only_a_length(5)):
        source = IntegerReader(message)
        if read is IntegerReader.one and message:
            source.one()
        with pytest.raises(ValueError, match="too early"):
            read(source)


def only_a_length(length: int) -> bytes:
    """The length of a tuple whose members are missing."""
    to = IntegerWriter()
    to.one(length)
    return to.message()
