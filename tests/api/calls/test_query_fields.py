from __future__ import annotations

import pytest
from starlette.requests import Request

from service.api.calls.query_fields import flag_of, number_of
from service.errors import InvalidRequest


def asking(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


@pytest.mark.parametrize(
    ("query", "flag"),
    [("", None), ("a", True), ("a=", True), ("a=1", True), ("a=True", True), ("a=0", False), ("a=false", False)],
)
def test_flags(query: str, flag: bool | None) -> None:
    assert flag_of(asking(query), "a") is flag


@pytest.mark.parametrize(("query", "number"), [("", None), ("a=0", 0), ("a=007", 7), ("a=999999999", 999_999_999)])
def test_numbers(query: str, number: int | None) -> None:
    assert number_of(asking(query), "a") == number


@pytest.mark.parametrize("value", ["", "-1", "1.0", "+1", "x", "1" * 10, "%D9%A3"])
def test_what_is_none_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        number_of(asking(f"a={value}"), "a")
    assert refused.value.param == "a"
    if value:
        with pytest.raises(InvalidRequest):
            flag_of(asking(f"a={value}"), "a")
