from __future__ import annotations

import pytest

from service.api.calls.token_checks import check_range, check_token_ids, quote
from service.errors import InvalidRequest


def test_ranges_include_both_ends_and_nothing_is_in_every_range() -> None:
    for value in (None, 0, 2, 1.5):
        check_range("x", value, 0, 2)
    for value in (-0.1, 2.1, float("nan")):
        with pytest.raises(InvalidRequest, match="x must be between 0 and 2") as refusal:
            check_range("x", value, 0, 2)
        assert refusal.value.param == "x"


def test_a_number_that_no_limit_bounds_from_above_is_not_told_one() -> None:
    with pytest.raises(InvalidRequest, match=r"^x must be at least 1, got 0\.$"):
        check_range("x", 0, 1, 2**63 - 1)
    with pytest.raises(InvalidRequest, match="x must be between 1 and 9223372036854775807"):
        check_range("x", 2**63, 1, 2**63 - 1)


@pytest.mark.parametrize("at", [0, 70_000])
def test_the_first_id_outside_the_vocabulary_is_named(at: int) -> None:
    ids = [5] * 100_000
    check_token_ids(ids, 10, "prompt")
    ids[at] = 10
    with pytest.raises(InvalidRequest, match="token id 10 is outside"):
        check_token_ids(ids, 10, "prompt")


def test_quoted_text_is_short() -> None:
    assert quote("a") == "'a'"
    assert len(quote("x" * 1000)) < 70
