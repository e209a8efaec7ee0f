"""A running OpenAI-compatible server, as the chat client calls it: one connection per call, standard library."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from service.chat_client.terminal import Piece

_CONNECT_S = 10.0
_PIECE_BYTES = 256 * 1024


class Usage(NamedTuple):
    """Tokens of a call, from the end of its stream."""

    prompt_tokens: int
    completion_tokens: int


class Ignored(NamedTuple):
    """Fields of a request that the server does not know and has ignored."""

    names: str


class BatchState(NamedTuple):
    """The state of a batch. errors: for the user. file_ids: of its results."""

    batch_id: str
    status: str
    num_lines: int
    num_completed: int
    num_failed: int
    errors: list[str]
    file_ids: list[str]

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed", "expired", "cancelled")


StreamEvent = Piece | Usage | Ignored


class ServerFault(Exception):
    """A call failed; the message is for the user. param: the field at fault, if the server names one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Server:
    """url: `http://host:port`, with or without `/v1`. Any thread; every method raises ServerFault."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = _parts_of(url)
        self._address = parts.hostname or "", parts.port
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = dict[str, str]()
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model_names(self) -> list[str]:
        """At least one."""
        with self._call("GET", "/v1/models") as answer:
            names = [str(card["id"]) for card in json.load(answer)["data"]]
        if not names:
            raise ServerFault("the server names no model")
        return names

    def complete_chat(self, request: Mapping[str, Any]) -> str:
        """The text of the answer to a chat request, once it is complete."""
        with self._call("POST", "/v1/chat/completions", request) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"] or "")

    def stream_chat(self, request: Mapping[str, Any]) -> Generator[StreamEvent, None, None]:
        """The answer piece by piece, and what else the stream says. Closing the iterator stops the answer."""
        body = {**request, "stream": True, "stream_options": {"include_usage": True}}
        with self._call("POST", "/v1/chat/completions", body) as answer:
            if names := answer.headers["x-ignored-params"]:
                yield Ignored(names)
            for line in answer:
                data = line.strip().removeprefix(b"data: ")
                if data.startswith(b"{"):
                    yield from _events_of(json.loads(data))

    def upload(self, lines: Iterable[bytes]) -> str:
        """The id of a new file for a batch, sent as `lines` come; their exceptions are passed on."""
        boundary = uuid.uuid4().hex
        part = f'--{boundary}\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'
        head = part % ("purpose", "") + "batch\r\n" + part % ("file", '; filename="requests.jsonl"')
        body = chain((head.encode(),), lines, (f"\r\n--{boundary}--\r\n".encode(),))
        with self._call("POST", "/v1/files", body, f"multipart/form-data; boundary={boundary}") as answer:
            return str(json.load(answer)["id"])

    def create_batch(self, file_id: str, endpoint: str, window: str) -> BatchState:
        request = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        with self._call("POST", "/v1/batches", request) as answer:
            return _batch_state(json.load(answer))

    def batch(self, batch_id: str) -> BatchState:
        with self._call("GET", f"/v1/batches/{batch_id}") as answer:
            return _batch_state(json.load(answer))

    def batch_events(self, batch_id: str, *, lines: bool) -> Generator[BatchState | bytes, None, None]:
        """The server's events: the batch's state whenever it changes and, with `lines`, the lines of its results as
        they come. Ends with the batch, or when the server ends. Only Headrace servers have them."""
        with self._call("GET", f"/v1/batches/{batch_id}/events?lines={lines}") as answer:
            if answer.headers.get_content_type() != "text/event-stream":
                raise ServerFault("the server pushes nothing of its batches")
            event = b""
            for line in answer:
                name, _, value = line.strip().partition(b": ")
                if name == b"event":
                    event = value
                elif name == b"data" and event == b"batch":
                    yield _batch_state(json.loads(value))
                elif name == b"data" and event == b"batch.line":
                    yield value
                elif not name:
                    event = b""

    def cancel_batch(self, batch_id: str) -> BatchState:
        """The batch ends soon after."""
        with self._call("POST", f"/v1/batches/{batch_id}/cancel", {}) as answer:
            return _batch_state(json.load(answer))

    def file_content(self, file_id: str) -> Iterator[bytes]:
        """In pieces."""
        with self._call("GET", f"/v1/files/{file_id}/content") as answer:
            while piece := answer.read(_PIECE_BYTES):
                yield piece

    @contextmanager
    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Iterable[bytes] | None = None,
        content_type: str = "application/json",
    ) -> Iterator[http.client.HTTPResponse]:
        """body: an object, which is sent as JSON, or bytes, which are sent unchanged."""
        host, port = self._address
        connection = self._connect(host, port, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # an answer may take any time
            content = json.dumps(body) if isinstance(body, Mapping) else body
            headers = {**self._headers, "Content-Type": content_type}
            connection.request(method, self._root + path, content, headers)
            with connection.getresponse() as answer:  # it has the socket, if the server closes it after the answer
                if answer.status != http.client.OK:
                    raise _fault(answer)
                yield answer
        except (OSError, http.client.HTTPException) as fault:
            raise ServerFault(f"the server at {host}:{port} does not answer: {fault}") from fault
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise ServerFault(f"the server at {host}:{port} answers {path} otherwise than OpenAI's do") from fault
        finally:
            connection.close()


def _parts_of(url: str) -> SplitResult:
    with suppress(ValueError):  # invalid brackets or port
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ServerFault(f"{url!r} is not the address of a server, such as http://127.0.0.1:8000")


def _events_of(chunk: Mapping[str, Any]) -> Iterator[Piece | Usage]:
    if "error" in chunk:
        raise ServerFault(chunk["error"]["message"], chunk["error"].get("param"))
    for choice in chunk["choices"]:
        delta = choice["delta"]
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            yield Piece(reasoning, is_reasoning=True)
        if content := delta.get("content"):
            yield Piece(content)
    if usage := chunk.get("usage"):
        yield Usage(usage["prompt_tokens"], usage["completion_tokens"])


def _batch_state(batch: Mapping[str, Any]) -> BatchState:
    counts, errors = batch["request_counts"], (batch.get("errors") or {}).get("data") or ()
    told = [(f"line {error['line']}: " if error.get("line") else "") + error["message"] for error in errors]
    files = [batch.get(name) for name in ("output_file_id", "error_file_id")]
    return BatchState(
        batch["id"],
        batch["status"],
        counts["total"],
        counts["completed"],
        counts["failed"],
        told,
        [file_id for file_id in files if file_id],
    )


def _fault(answer: http.client.HTTPResponse) -> ServerFault:
    try:
        error = json.load(answer)["error"]
        return ServerFault(error["message"], error.get("param"))
    except (ValueError, LookupError, TypeError):
        return ServerFault(f"the server answered {answer.status} {answer.reason}")
