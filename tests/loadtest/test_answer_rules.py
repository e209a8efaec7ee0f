import json

import pytest

from loadtest.answer_rules import BrokenRuleError, check_answer
from loadtest.strict_http import Answer

ERROR = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}
SERVER_ERROR = {"error": {"message": "no", "type": "server_error", "param": None, "code": "overloaded"}}


def answer(status: int, body: object = b"", **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {"x-request-id": "1", **headers}, content, False)


def stream(*events: object) -> Answer:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return answer(200, body + b"data: [DONE]\n\n", **{"content-type": "text/event-stream; charset=utf-8"})


@pytest.mark.parametrize(
    "good",
    [
        answer(200),
        answer(400, ERROR),
        answer(503, SERVER_ERROR, **{"retry-after": "1"}),
        stream({"choices": []}),
        stream({"choices": []}, ERROR),
        stream(SERVER_ERROR),
    ],
)
def test_what_keeps_to_the_rules(good: Answer) -> None:
    check_answer(good, {200, 400, 503}, {"overloaded"})


@pytest.mark.parametrize(
    "bad",
    [
        answer(500, ERROR),
        Answer(200, {}, b"", False),
        answer(400, b"Bad Request"),
        answer(400, {"error": "no"}),
        answer(400, {"error": {"message": "no"}}),
        answer(503, SERVER_ERROR),
        stream(SERVER_ERROR)._replace(body=b'data: {"choices": []}\n\n'),
        stream()._replace(body=b"data: [DONE]\n"),
        stream()._replace(body=b"nonsense\n\ndata: [DONE]\n\n"),
        stream({"error": {"message": "no", "type": "server_error", "param": None, "code": None}}),
    ],
)
def test_what_does_not(bad: Answer) -> None:
    with pytest.raises(BrokenRuleError):
        check_answer(bad, {200, 400, 503}, {"overloaded"})


def test_head_has_no_body_to_look_at() -> None:
    check_answer(answer(404), {404}, to_head=True)
