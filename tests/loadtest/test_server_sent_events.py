import pytest

from loadtest.server_sent_events import EventParser

STREAM = b': ping\n\ndata: {"a": 1}\n\nevent: x\ndata: one\ndata:two\n\nid: 7\n\ndata: \xc3\xa9\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a": 1}', b"one\ntwo", b"\xc3\xa9", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1000])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_events_in_pieces_of_any_size(size: int, line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    parser = EventParser()
    events = [e for i in range(0, len(stream), size) for e in parser.feed(stream[i : i + size])]
    assert events == EVENTS
