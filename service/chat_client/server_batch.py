"""A batch of the chat's that the server runs by its Batch API: it has the server's id, and waits while anybody chats,
whatever the scheduling policy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from threading import Event
from typing import Any

from service.chat_client.batch_file import CHAT
from service.chat_client.server import Server, ServerFault

_LOOK_EVERY_S = 0.25
_WINDOW = "24h"
_OK = 200


class ServerBatch:
    """requests: to the chat endpoint. Made, it has begun: raises ServerFault where the server takes no batches."""

    def __init__(self, server: Server, requests: Sequence[Mapping[str, Any]]) -> None:
        self._server = server
        self._state = server.create_batch(server.upload(_lines(requests)), CHAT, _WINDOW)

    @property
    def batch_id(self) -> str:
        return self._state.batch_id

    def bring(self, answers: Sequence[Future[str]], is_closing: Event) -> None:
        """Each becomes the text of its request's answer, or ServerFault, when the batch is over. Cancels it once
        `is_closing` is set. In a thread of its own."""
        try:
            self._wait(is_closing)
            texts = self._texts()
        except ServerFault as fault:
            texts = dict.fromkeys(range(len(answers)), fault)
        missing = ServerFault("; ".join([f"the batch is {self._state.status}", *self._state.errors]))
        for number, answer in enumerate(answers):
            text = texts.get(number, missing)
            if isinstance(text, ServerFault):
                answer.set_exception(text)
            else:
                answer.set_result(text)

    def _wait(self, is_closing: Event) -> None:
        is_cancelled = False
        while not self._state.is_over:
            if is_closing.wait(_LOOK_EVERY_S) and not is_cancelled:
                self._state, is_cancelled = self._server.cancel_batch(self.batch_id), True
            elif is_cancelled:
                return  # it ends soon, and nobody waits for it
            else:
                self._state = self._server.batch(self.batch_id)

    def _texts(self) -> dict[int, str | ServerFault]:
        """By the requests' numbers, of those that have ended."""
        return dict(_text(line) for file_id in self._state.file_ids for line in _read(self._server, file_id))


def _lines(requests: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    for number, body in enumerate(requests):
        line = {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _read(server: Server, file_id: str) -> list[bytes]:
    return [line for line in b"".join(server.file_content(file_id)).splitlines() if line.strip()]


def _text(line: bytes) -> tuple[int, str | ServerFault]:
    try:
        told = json.loads(line)
        number, response = int(told["custom_id"]), told["response"]
        if response is not None and response["status_code"] == _OK:
            return number, str(response["body"]["choices"][0]["message"]["content"] or "")
        error = told["error"] if response is None else response["body"]["error"]
        return number, ServerFault(str(error["message"]))
    except (ValueError, LookupError, TypeError) as fault:
        raise ServerFault("the server's file of answers is not as OpenAI's are") from fault
