"""The way past `send` for the pieces of a stream: nearly all of them can be written to the connection at once."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def write_now(cycle: RequestResponseCycle, piece: bytes) -> bool:
    """Write a piece of the answer's body that is not the last, as `cycle.send` would. False if `send` has to do it: it
    would block, or the answer has not begun or is not chunked."""
    if cycle.flow.write_paused or not cycle.chunked_encoding or cycle.response_complete:
        return False
    if not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    return True
