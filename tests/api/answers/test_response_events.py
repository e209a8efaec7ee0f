from __future__ import annotations

import json

from service.api.answers.response_events import ResponseEvents


def test_events_are_numbered_and_named_twice() -> None:
    events = ResponseEvents()
    frames = [events.frame("response.a", delta="x\ny"), events.frame("error", message="ä")]
    for number, (frame, kind) in enumerate(zip(frames, ("response.a", "error"), strict=True)):
        name, data, *blank = frame.decode().split("\n")
        assert (name, blank) == (f"event: {kind}", ["", ""])
        event = json.loads(data.removeprefix("data: "))
        assert (event["type"], event["sequence_number"]) == (kind, number)
