"""A running OpenAI-compatible server, as the chat client calls it: a connection for each call, standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from service.chat_client.terminal import Piece

_CONNECT_S = 10.0


class Usage(NamedTuple):
    """Tokens of a call, as its stream tells them at the end."""

    prompt_tokens: int
    completion_tokens: int


class Ignored(NamedTuple):
    """Fields of a request that the server does not know and has left out."""

    names: str


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
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model_names(self) -> list[str]:
        """One at least."""
        with self._call("GET", "/v1/models") as answer:
            names = [str(card["id"]) for card in json.load(answer)["data"]]
        if not names:
            raise ServerFault("the server names no model")
        return names

    def complete_chat(self, request: Mapping[str, Any]) -> str:
        """The text of the answer to a chat request, once it is whole."""
        with self._call("POST", "/v1/chat/completions", request) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"] or "")

    def stream_chat(self, request: Mapping[str, Any]) -> Generator[StreamEvent, None, None]:
        """The answer piece by piece, and what else is told of it. To close the iterator is to stop the answer."""
        body = {**request, "stream": True, "stream_options": {"include_usage": True}}
        with self._call("POST", "/v1/chat/completions", body) as answer:
            if names := answer.headers["x-ignored-params"]:
                yield Ignored(names)
            for line in answer:
                data = line.strip().removeprefix(b"data: ")
                if data.startswith(b"{"):
                    yield from _events_of(json.loads(data))

    @contextmanager
    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        host, port = self._address
        connection = self._connect(host, port, timeout=_CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # an answer may take as long as it likes
            text = None if body is None else json.dumps(body)
            connection.request(method, self._root + path, text, self._headers)
            with connection.getresponse() as answer:  # which has the socket, if the server closes it after the answer
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
    with suppress(ValueError):  # brackets or a port that are none
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


def _fault(answer: http.client.HTTPResponse) -> ServerFault:
    try:
        error = json.load(answer)["error"]
        return ServerFault(error["message"], error.get("param"))
    except (ValueError, LookupError, TypeError):
        return ServerFault(f"the server answered {answer.status} {answer.reason}")
