import json
from typing import Any

import pytest

from loadtest.stream_record import EventReader, StreamRecord


def _read(*chunks: Any) -> StreamRecord:
    """Chunks come one second apart from second 1 on; the request was due at 0."""
    record = StreamRecord(0, scheduled_s=0.0)
    reader = EventReader(record)
    for i, chunk in enumerate(chunks):
        reader.read(b"[DONE]" if chunk == "done" else json.dumps(chunk).encode(), float(i + 1))
    reader.finish()
    return record


def _text(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


def _delta(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
}


def test_usage_wins_over_chunks() -> None:
    record = _read(_text("a"), _text("b", "length"), USAGE, "done")
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (5, 9, 4)
    assert record.tokens_from == "usage"
    assert record.end_s == 2.0
    assert record.time_per_output_token_s == pytest.approx(1.0 / 8)
    assert record.normalized_latency_s == pytest.approx(2.0 / 9)


def test_token_ids_win_over_chunks() -> None:
    record = _read(_text("", token_ids=[1, 2, 3]), _text("b", "length", token_ids=[4]), "done")
    assert (record.token_ids, record.chunk_tokens) == ([1, 2, 3, 4], [3, 1])
    assert (record.output_tokens, record.tokens_from) == (4, "token_ids")


def test_chunks_are_counted_without_usage() -> None:
    record = _read(_text("a"), _text(""), _text("", "stop"), "done")
    assert (record.output_tokens, record.tokens_from, record.finish_reason) == (2, "chunks", "stop")
    assert record.chunk_times == [1.0, 2.0]
    assert record.end_s == 3.0


def test_chat_role_and_finish_hold_no_token() -> None:
    chunks = (
        _delta(role="assistant", content=""),
        _delta(content="a"),
        _delta(reasoning_content="b"),
        _delta("stop"),
    )
    record = _read(*chunks, "done")
    assert record.chunk_times == [2.0, 3.0]
    assert record.time_to_first_token_s == 2.0


def test_chat_tool_call_is_output() -> None:
    assert _read(_delta(tool_calls=[{"index": 0}]), _delta("tool_calls")).chunk_times == [1.0]


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ({"code": "full", "message": "m"}, "stream_error: full"),
        ({"message": "m"}, "stream_error: m"),
        ("x", "stream_error: x"),
    ],
)
def test_error_event_is_named(error: Any, named: str) -> None:
    record = _read(_text("a"), {"error": error}, "done")
    assert record.error == named
    assert record.error_kind == "stream_error"


def test_single_token_has_no_time_per_output_token() -> None:
    record = _read(_text("a", "length"))
    assert record.time_per_output_token_s is None
    assert record.inter_token_latencies_s == []


def test_nothing_came() -> None:
    record = _read("done")
    assert record.time_to_first_token_s is None
    assert record.normalized_latency_s is None
