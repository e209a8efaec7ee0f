"""Rules that every answer of the service obeys, whatever the request was."""

import json
from collections.abc import Collection

from loadtest.strict_http import Answer


class BrokenRuleError(Exception):
    """The answer is valid HTTP, but not what the service promises."""


def check_answer(
    answer: Answer, expected: Collection[int], stream_faults: Collection[str] = (), *, to_head: bool = False
) -> None:
    """Raises BrokenRuleError if the answer breaks a rule. to_head: the request was HEAD, so there is no body to check.

    The rules: a request id; a status among `expected`; an error body in OpenAI's shape; Retry-After with a 503; a
    stream ends in [DONE]. Error events in a stream must be the client's fault or have a code in `stream_faults`.
    """
    if answer.status not in expected:
        raise BrokenRuleError(f"status {answer.status}: {answer.body[:300]!r}")
    if "x-request-id" not in answer.headers:
        raise BrokenRuleError("no x-request-id")
    if answer.status == 503 and "retry-after" not in answer.headers:
        raise BrokenRuleError("503 without retry-after")
    if to_head:
        return
    if answer.status >= 400:
        _check_error(answer)
    elif answer.headers.get("content-type", "").startswith("text/event-stream"):
        _check_stream(answer.body, stream_faults)


def _check_error(answer: Answer) -> None:
    try:
        error = json.loads(answer.body)["error"]
        is_good = error.keys() == {"message", "type", "param", "code"} and isinstance(error["message"], str)
    except (ValueError, LookupError, TypeError, AttributeError):
        is_good = False
    if not is_good:
        raise BrokenRuleError(f"no error object: {answer.body[:300]!r}")


def _check_stream(body: bytes, faults: Collection[str]) -> None:
    events = body.decode().split("\n\n")
    if events.pop():
        raise BrokenRuleError("the stream ends within an event")
    events = [event for event in events if not event.startswith(":")]
    if not events or events.pop() != "data: [DONE]":
        raise BrokenRuleError(f"the stream does not end in [DONE]: {body[-300:]!r}")
    for event in events:
        if not event.startswith("data: ") or "\n" in event:
            raise BrokenRuleError(f"event {event[:80]!r}")
        error = json.loads(event[6:]).get("error")
        if error and error["type"] != "invalid_request_error" and error["code"] not in faults:
            raise BrokenRuleError(f"error event {error}")
