from __future__ import annotations

import json

import pytest

from service.ray_serve.call import (
    MAX_PARSED_BYTES,
    MAX_PROMPT_CHARS,
    MIN_PROMPT_CHARS,
    end_to_end,
    prompt_of,
)
from tests.complexity.growth import MOST_GROWTH, Work, WorstInput, least_growth

LONG = "These are instructions, the same for everybody. " * 10
PARTS = [{"type": "text", "text": LONG}]


def bodies(question: str) -> list[dict]:
    """One of each API's shapes, with a common beginning and a question."""
    user = {"role": "user", "content": question}
    return [
        {"prompt": LONG + question},
        {"prompt": [LONG, question]},
        {"prompt": [*range(200), len(question)]},
        {"messages": [{"role": "system", "content": LONG}, user]},
        {"messages": [{"role": "system", "content": PARTS}, user]},
        {"system": LONG, "messages": [user]},
        {"messages": [user], "system": PARTS},
        {"instructions": LONG, "input": question},
        {"instructions": LONG, "input": [{"role": "user", "content": [{"type": "input_text", "text": question}]}]},
    ]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("around", [{}, {"model": "m", "temperature": 0.5}])
def test_prompts_that_begin_alike_have_texts_that_begin_alike(number: int, around: dict):
    first = prompt_of(json.dumps({**around, **bodies("why?")[number]}).encode())
    second = prompt_of(json.dumps({**bodies("wherefore so late?")[number], **around}).encode())
    common = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert first != second
    assert common >= min(len(LONG), len(first) - len("why?\n")) - 4


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"null", b"[1]", b"7", b"{}", b'{"messages": null}', b'{"prompt": {"a": [{}]}}'],
)
def test_what_is_no_prompt_says_nothing_and_raises_nothing(body: bytes):
    assert prompt_of(body) is None


def test_a_short_prompt_says_nothing_and_a_long_one_no_more_than_a_router_wants():
    assert prompt_of(json.dumps({"prompt": "x" * (MIN_PROMPT_CHARS - 1)}).encode()) is None
    assert prompt_of(json.dumps({"prompt": "x" * MIN_PROMPT_CHARS}).encode()) == "x" * MIN_PROMPT_CHARS
    assert prompt_of(json.dumps({"prompt": "x" * 100_000}).encode()) == "x" * MAX_PROMPT_CHARS


def test_a_body_that_would_hold_up_the_loop_is_not_parsed():
    body = json.dumps({"messages": [{"role": "user", "content": "x" * MAX_PARSED_BYTES}]}).encode()
    assert prompt_of(body) == body[:MAX_PROMPT_CHARS].decode()


def test_nested_lists_are_not_followed_for_ever():
    assert prompt_of(b'{"prompt": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}") is None


def test_time_is_linear():
    def empty_texts(size: int) -> Work:
        return lambda: prompt_of(b'{"prompt": [' + b",".join([b'""'] * size) + b"]}")

    row = WorstInput(
        "texts", ("ray_serve/call.py",), empty_texts, size=20_000, most=MAX_PARSED_BYTES // 3, place="loop"
    )
    assert least_growth(row) < MOST_GROWTH


def test_headers_of_one_connection_stay_there():
    headers = [(b"Connection", b"close"), (b"transfer-encoding", b"chunked"), (b"authorization", b"Bearer x")]
    assert end_to_end([*headers, (b"content-length", b"3")]) == ((b"authorization", b"Bearer x"),)
