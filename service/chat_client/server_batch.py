"""A batch of the chat that the server runs by its Batch API: it has the server's id, and waits while there are chats,
whatever the scheduling policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from service.chat_client.batch_file import CHAT
from service.chat_client.batch_watch import watch_batch
from service.chat_client.server import Server, ServerFault

_WINDOW = "24h"
_OK = 200

NumberedText = tuple[int, str | ServerFault]
"""A request's number, and its answer's text or the reason why there is none."""


class ServerBatch:
    """requests: to the chat endpoint. The batch begins at construction; ServerFault if the server does not support
    batches."""

    def __init__(self, server: Server, requests: Sequence[Mapping[str, Any]]) -> None:
        self._server = server
        self._state = server.create_batch(server.upload(_lines(requests)), CHAT, _WINDOW)

    @property
    def batch_id(self) -> str:
        return self._state.batch_id

    @property
    def is_over(self) -> bool:
        return self._state.is_over

    def bring(self, answers: Sequence[Future[str]]) -> None:
        """Sets each future to the text of its request's answer, or to ServerFault, as soon as the server reports it.
        Runs in a thread of its own."""
        try:
            for told in watch_batch(self._server, self.batch_id, lines=True):
                if isinstance(told, bytes):
                    _settle(answers, _text(told))
                else:
                    self._state = told
            if not all(answer.done() for answer in answers):
                for text in self._texts():
                    _settle(answers, text)
            fault = ServerFault("; ".join([f"the batch is {self._state.status}", *self._state.errors]))
        except ServerFault as its_own:
            fault = its_own
        for number in range(len(answers)):
            _settle(answers, (number, fault))

    def cancel(self) -> None:
        """The batch ends soon after, if it has not ended. Any thread."""
        with suppress(ServerFault):
            self._server.cancel_batch(self.batch_id)

    def _texts(self) -> Iterator[NumberedText]:
        """Of the requests that have ended."""
        return (_text(line) for file_id in self._state.file_ids for line in _read(self._server, file_id))


def _lines(requests: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    for number, body in enumerate(requests):
        line = {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _settle(answers: Sequence[Future[str]], text: NumberedText) -> None:
    """Futures that are set stay as they are."""
    number, value = text
    if not 0 <= number < len(answers):
        raise ServerFault("the server answers requests that are not in the batch")
    if not answers[number].done():
        if isinstance(value, ServerFault):
            answers[number].set_exception(value)
        else:
            answers[number].set_result(value)


def _read(server: Server, file_id: str) -> list[bytes]:
    return [line for line in b"".join(server.file_content(file_id)).splitlines() if line.strip()]


def _text(line: bytes) -> NumberedText:
    try:
        told = json.loads(line)
        number, response = int(told["custom_id"]), told["response"]
        if response is not None and response["status_code"] == _OK:
            return number, str(response["body"]["choices"][0]["message"]["content"] or "")
        error = told["error"] if response is None else response["body"]["error"]
        return number, ServerFault(str(error["message"]))
    except (ValueError, LookupError, TypeError) as fault:
        raise ServerFault("the server's file of answers is not as OpenAI's are") from fault
