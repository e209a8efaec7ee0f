"""One HTTP/1.1 connection with limits that uvicorn's protocol lacks.

uvicorn has no deadline for headers or bodies, no limit on the size or number of headers, and it waits for ever for a
client that does not read. Here every state of a connection has a deadline, after which the connection is closed:
connected or idle, in the headers, in the body, not reading. A client that is still sending when its answer is complete
may go on for a moment: closing on unread bytes would reset the connection, and the answer would be lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.config import UPLOAD_STEP_BYTES, ConnectionLimits
from service.core.rare_warning import RareWarning
from service.http.chunked_body import ChunkedBody
from service.http.request_cycle import release, take_over

_logger = logging.getLogger("headrace")
_GRACE_S = 1.0
"""Seconds. The app has its own deadlines for bodies and streams, with better messages; ours come after them."""

_MAX_PIPELINED = 8
"""Requests queued behind one that is being answered; up to here the connection is read, so that its end is noticed."""

_VERSIONS = frozenset({"1.0", "1.1"})
_HEAD_END = b"\r\n\r\n"
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
"""The characters of a host and a port (RFC 3986); it may be empty."""

_LINGER_S = 2.0
"""How many seconds a client that was answered early may go on sending; what it sends is dropped."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with `limits`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        too_many: RareWarning,
        log: _UvicornLog,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = log
        self._limits = limits
        self._too_many = too_many
        self._input_deadline: asyncio.TimerHandle | None = None
        self._output_deadline: asyncio.TimerHandle | None = None
        self._in_message = False
        self._is_lingering = False
        self._is_last = False  # what came after the newest request is not HTTP: nothing more is read
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._num_headers = 0
        self._num_hosts = 0
        self._num_upload_bytes = 0  # of the body that is being read, if it is an upload
        self._is_upload = False
        self._num_head_bytes = 0  # passed to the parser since it last reported a body or the end of a head
        self._is_chunked = False
        self._chunks: ChunkedBody | None = None  # of the current body, if it was seen from its first byte

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own narrowing
        if len(self.connections) >= self._limits.max_connections:
            self.transport = transport
            self._too_many.tell(len(self.connections))
            transport.abort()
            return
        super().connection_made(transport)
        self._expect_input(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_input()
        self._expect_no_output()
        for cycle in self._unanswered:  # uvicorn tells only the newest request
            cycle.disconnected = True
            cycle.message_event.set()
            release(cycle)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does it only if there was no error
        self._unanswered.clear()
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]  # as it was before the first request

    def data_received(self, data: bytes) -> None:
        if self._is_over():
            return
        if not self._in_message and self._input_deadline is None:
            self._expect_input(self._limits.header_timeout_s)
        head_end = -1 if self._in_message else data.find(_HEAD_END)
        if head_end >= 0:
            head, data = data[: head_end + len(_HEAD_END)], data[head_end + len(_HEAD_END) :]
            self._feed(head)
            if self._in_message and self._is_chunked:
                self._chunks = ChunkedBody()
        if self._chunks is not None:
            self._chunks.feed(data)
            most = self._limits.max_upload_bytes if self._is_upload else self._limits.max_body_bytes
            if self._chunks.declared_bytes > most:
                self._refuse(413, f"The body may have at most {most} bytes.")
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Passes data to the parser in pieces small enough for the limits."""
        most = self._limits.max_header_bytes
        for start in range(0, len(data), most):
            if self._is_over():
                return
            if self._num_head_bytes >= most:
                self._refuse(431, f"The headers may have at most {most} bytes.")
                return
            piece = data[start : start + most]
            self._num_head_bytes += len(piece)
            super().data_received(piece)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_headers = self._num_hosts = 0
        self._is_chunked = False
        if self._input_deadline is None:  # its first bytes came together with the end of another message
            self._expect_input(self._limits.header_timeout_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        if self._num_headers > self._limits.max_headers:
            self._refuse(431, f"There may be at most {self._limits.max_headers} headers.")
        match name.lower():
            case b"transfer-encoding":
                self._is_chunked = True
                if value.strip().lower() != b"chunked":
                    self._refuse(501, "The only transfer encoding that is understood is chunked.")
            case b"host":
                self._num_hosts += 1
                if not _HOST.fullmatch(value):
                    self._refuse(400, "The Host header is not the name of a host.")
        if not self._is_over():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_over():
            self._check_head()
        if self._is_over():
            return
        super().on_headers_complete()  # raises if the target is not a URL; then there is no new request
        self._in_message = True
        self._num_head_bytes = 0
        self._num_upload_bytes = 0
        self._is_upload = self.scope["path"] in self._limits.upload_paths and self.scope["method"] == "POST"
        self._expect_no_input()
        if self.cycle is not None:
            take_over(self.cycle, self._close)
            self._unanswered.append(self.cycle)
        if not self.pipeline:
            self._expect_input(self._limits.body_timeout_s + _GRACE_S)
        elif len(self.pipeline) <= _MAX_PIPELINED:  # an earlier answer is in progress: the client waits for us
            self.flow.resume_reading()

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            self._refuse(400, f"HTTP/1.1 and HTTP/1.0 are spoken here, not HTTP/{version}.")
        elif self._num_hosts != 1 and (version == "1.1" or self._num_hosts):
            self._refuse(400, f"A request has one Host header, not {self._num_hosts}.")

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        if self._in_message:
            if self._is_upload:
                self._note_upload(len(body))
            super().on_body(body)

    def _note_upload(self, num_bytes: int) -> None:
        """`num_bytes` more of an upload have arrived; each step restarts its deadline."""
        num_steps = self._num_upload_bytes // UPLOAD_STEP_BYTES
        self._num_upload_bytes += num_bytes
        if self._num_upload_bytes // UPLOAD_STEP_BYTES > num_steps and not self.pipeline:
            self._expect_input(self._limits.body_timeout_s + _GRACE_S)

    def on_message_complete(self) -> None:
        if not self._in_message:
            return
        self._in_message = False
        self._chunks = None
        self._num_head_bytes = 0
        self._expect_no_input()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        release(self._unanswered.popleft())
        super().on_response_complete()
        if self.transport.is_closing() or self._is_lingering:
            self._expect_output()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._expect_output()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_output()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not (self.transport.is_closing() or self._is_lingering):
            self._expect_no_output()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP is answered in the form of all other refusals."""
        self._refuse(400, msg)

    def _unsupported_upgrade_warning(self) -> None:
        # An answer without the upgrade refuses it. To the parser, what follows on the connection is not HTTP.
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close. Requests in progress on the connection are answered first; then it ends without this
        refusal."""
        if self._is_over():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if not self._in_message:
                self._end_after_newest()
                return
            if self.pipeline:
                self._drop_newest()
                self._end_after_newest()
                return
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True  # the app stops waiting for the rest of a body that cannot come
            self.cycle.waiting_for_100_continue = False
            self.cycle.message_event.set()
        elif self._in_message:  # it was answered before its body was complete
            self._linger()
            return
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        body = orjson.dumps({"error": error})
        head = b"content-type: application/json\r\nconnection: close\r\n"
        head += b"content-length: %d\r\nx-request-id: %s\r\n\r\n" % (len(body), uuid.uuid4().hex.encode())
        self.transport.write(STATUS_LINE[status] + head + body)
        self._expect_output()
        self._linger()

    def _drop_newest(self) -> None:
        """The newest request, which waits behind others, cannot be completed."""
        self.pipeline.popleft()
        release(self._unanswered.pop())
        self.cycle = self._unanswered[-1]
        self._in_message = False

    def _end_after_newest(self) -> None:
        """Takes no further request; those that are complete are answered."""
        self._is_last = True
        self.cycle.keep_alive = False
        self._expect_no_input()

    def _is_over(self) -> bool:
        return self._is_last or self._is_lingering or self.transport.is_closing()

    def _close(self) -> None:
        """The last answer of the connection is written. Data that the client is still sending must not destroy it."""
        self.pipeline.clear()
        if self._in_message or self._is_last or self.transport.can_write_eof():
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Ends our side, and drops what the client sends until it has noticed that, or until the time has passed."""
        if self._is_lingering or self.transport.is_closing():
            return
        self._is_lingering = True
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        self.flow.resume_reading()
        self._expect_input(_LINGER_S)

    def _expect_input(self, within_s: float) -> None:
        self._expect_no_input()
        self._input_deadline = self.loop.call_later(within_s, self._on_late_input)

    def _on_late_input(self) -> None:
        if self._is_lingering and self.transport.get_write_buffer_size():
            self._expect_input(_LINGER_S)  # it reads, and has a deadline for that
        elif self._is_lingering:
            self.transport.abort()
        elif not self._in_message and self.cycle is not None and not self.cycle.response_complete:
            # Bytes of a next request, or stray ones, must not destroy the answer in progress.
            self._expect_input(self._limits.header_timeout_s)
        else:
            self.transport.abort()

    def _expect_no_input(self) -> None:
        if self._input_deadline is not None:
            self._input_deadline.cancel()
            self._input_deadline = None

    def _expect_output(self) -> None:
        """The client must read what is unsent; whenever it has read nearly all of it, the deadline restarts."""
        self._expect_no_output()
        self._output_deadline = self.loop.call_later(self._limits.send_timeout_s + _GRACE_S, self.transport.abort)

    def _expect_no_output(self) -> None:
        if self._output_deadline is not None:
            self._output_deadline.cancel()
            self._output_deadline = None


class _UvicornLog(logging.Logger):
    """uvicorn's log. Its protocol warns only of requests that are not HTTP, which any client can send."""

    def __init__(self) -> None:
        super().__init__("uvicorn.error")
        self.parent = logging.getLogger(self.name)
        self._not_http = RareWarning(_logger, "requests that are not HTTP were refused: %d")

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        self._not_http.tell()


def bounded_protocol(limits: ConnectionLimits) -> Callable[..., HttpToolsProtocol]:
    """The factory that uvicorn calls for each connection."""
    too_many = RareWarning(
        _logger, "%d connections are open, which is the limit (--max-connections); new ones closed: %d"
    )
    return partial(BoundedProtocol, limits=limits, too_many=too_many, log=_UvicornLog())
