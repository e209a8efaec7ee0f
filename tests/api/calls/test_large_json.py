from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.calls.large_json import parse_large
from service.errors import InvalidRequest
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of
from tests.complexity.growth import MOST_GROWTH, Work, WorstInput, least_growth

IDS = list(range(-50, 30_000))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text()
    | st.sampled_from(['"', "\\", '\\"[1,2', "[" * 9]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values, values)
def test_equals_the_parser_of_small_bodies(first: Any, second: Any) -> None:
    body = orjson.dumps([first, IDS, {"a": [second, IDS]}, second])
    assert parse_large(body) == orjson.loads(body)


@pytest.mark.parametrize("wrong", ["1,,2", "1 2", "1,", ",1", "01", "--1", "-", "1,-"])
@pytest.mark.parametrize("where", [0, 5000, 60_000, 200_000])
def test_a_run_is_checked_as_strictly(wrong: str, where: int) -> None:
    body = ("[" + "7," * (where // 2) + wrong + ",8" * (0 if wrong.endswith(",") else 100_000) + "]").encode()
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(body)
    with pytest.raises(orjson.JSONDecodeError):
        parse_large(body)


@pytest.mark.parametrize("ending", ["1,]", ",", "1,\n]"])
def test_a_run_that_ends_with_a_comma_at_the_border_of_a_piece(ending: str) -> None:
    for length in range(65_530, 65_545):
        with pytest.raises(orjson.JSONDecodeError):
            parse_large(b"[" + b"1" + b" " * length + ending.encode())


@pytest.mark.parametrize("value", [b"[1],", b'"",', b"{},", b"1.5,", b"[[[]]],"])
def test_too_many_values_are_refused_at_once(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"too many values.* at most 524288 bytes"):
        parse_large(b"[" + value * (4_000_000 // len(value)) + b"0]")


@pytest.mark.parametrize("blank", [b" ", b"\n", b"\t \r\n"])
def test_an_array_of_white_space_is_an_empty_one(blank: bytes) -> None:
    body = orjson.dumps({"ids": IDS})[:-1] + b',"none":[' + blank * 5000 + b"]}"
    assert parse_large(body) == {"ids": IDS, "none": []}


def test_what_only_looks_like_the_name_of_a_run_is_left_alone() -> None:
    body = orjson.dumps([IDS, {"\ue000run": 7}, {"\ue000run": "x"}, {"\ue000run": True}])
    assert parse_large(body)[1:] == [{"\ue000run": 7}, {"\ue000run": "x"}, {"\ue000run": True}]


@pytest.mark.parametrize("depth", [400, 900])
def test_a_run_may_be_nested_as_deep_as_in_a_small_body(depth: int) -> None:
    value = parse_large(b"[" * depth + orjson.dumps(IDS) + b"]" * depth)
    for _ in range(depth):
        (value,) = value
    assert value == IDS


HOSTILE = {
    "a string that does not end, of quotes": (b'"', b'\\"', b""),
    "a string that does not end, of backslashes": (b'"', b"\\\\", b""),
    "a string of escapes": (b'"', b'a\\"', b'"'),
    "strings of one escape": (b"[", b'"\\"",', b'""]'),
    "strings without commas": (b"", b'""', b""),
    "lists that do not end": (b"", b"[", b""),
    "short lists": (b"[", b"[],", b"0]"),
    "objects in objects": (b"", b'{"a":', b""),
    "keys": (b"{", b'"a":1,', b'"b":1}'),
    "ids": (b"[", b"7,", b"7]"),
    "ids that do not end": (b"[", b"7,", b""),
    "lists of ids that do not end": (b"", b"[" + b"7" * 4096, b""),
    "digits": (b"[", b"7", b""),
    "white space": (b"[", b" \n", b""),
    "white space in a list": (b"[1", b" ", b"]"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_time_grows_with_the_body_and_no_faster(kind: str) -> None:
    before, repeated, behind = HOSTILE[kind]

    def parse(num_bytes: int) -> Work:
        body = before + repeated * (num_bytes // len(repeated)) + behind

        def work() -> None:
            with contextlib.suppress(InvalidRequest, orjson.JSONDecodeError):
                parse_large(body)

        return work

    assert least_growth(WorstInput(kind, (), parse, 300_000, 1_200_000, "pool")) < MOST_GROWTH


@given(
    st.lists(st.sampled_from(['"', "\\", "a", "[", "]", "7", ",", " " * 5000, "7," * 3000]), max_size=30).map("".join)
)
def test_what_is_not_json_is_refused_as_in_a_small_body(text: str) -> None:
    body = text.encode()
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            parse_large(body)
    else:
        assert parse_large(body) == value


def test_text_is_not_structure() -> None:
    text = '[1,2],{"a":"b"},' * 200_000
    assert parse_large(orjson.dumps({"prompt": text})) == {"prompt": text}


def longest_wait_s(server: RunningServer, request: Any) -> float:
    """How long the event loop was away, at most, while `request` was answered."""
    longest_s, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest_s
        while not done.is_set():
            started_s = time.perf_counter()
            with contextlib.suppress(TimeoutError):
                server.on_loop(lambda: None)
            longest_s = max(longest_s, time.perf_counter() - started_s)
            time.sleep(0.001)

    watching = threading.Thread(target=watch)
    watching.start()
    request()
    done.set()
    watching.join()
    return longest_s


def test_a_string_that_does_not_end_does_not_hold_up_the_event_loop() -> None:
    body = b'{"x":"' + b"x" * 100_000 + b'","prompt":"' + b'\\"' * 16_000
    with running() as server, httpx.Client(base_url=server.base_url, timeout=60) as http:

        def post() -> None:
            response = http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
            assert "not valid JSON" in error_of(response)["message"]

        assert longest_wait_s(server, post) < 1


@pytest.mark.load
@pytest.mark.parametrize("num_ids", [1_500_000])
def test_a_body_of_ids_does_not_hold_up_the_event_loop(num_ids: int) -> None:
    with running(Scene(max_model_len=4_000_000, num_blocks=1_000_000)) as server:
        body = orjson.dumps(completion(prompt=[7] * num_ids + [1_000_000]))
        with httpx.Client(base_url=server.base_url, timeout=60) as http:

            def post() -> None:
                response = http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
                assert "outside the vocabulary" in error_of(response)["message"]

            assert longest_wait_s(server, post) < 0.05
