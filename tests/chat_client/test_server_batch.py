from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any

import pytest

from service.chat_client.server import BatchState, Server, ServerFault
from service.chat_client.server_batch import ServerBatch
from tests.api.running_server import MODEL, running
from tests.chat_client.test_session import WAIT, ScriptedServer, play

REQUESTS = [{"messages": [{"role": "user", "content": text}]} for text in ("a", "b", "c")]


class BatchServer(ScriptedServer):
    """Runs batches and pushes nothing of them: the answer to `b` is an error, to the others what was asked. It tells
    them last line first.

    num_looks: until it is over. None: never, if it is not cancelled.
    """

    def __init__(self, num_looks: int | None = 2) -> None:
        super().__init__()
        self.num_looks = num_looks
        self.lines: list[dict[str, Any]] = []
        self.is_cancelled = False

    def upload(self, lines: Iterable[bytes]) -> str:
        self.lines = [json.loads(line) for line in lines]
        return "file-1"

    def create_batch(self, file_id: str, endpoint: str, window: str) -> BatchState:
        assert (file_id, endpoint) == ("file-1", "/v1/chat/completions")
        return self._state("in_progress")

    def batch_events(self, batch_id: str, *, lines: bool) -> Generator[BatchState | bytes, None, None]:
        raise ServerFault("no such route")

    def batch(self, batch_id: str) -> BatchState:
        assert batch_id == "batch_7"
        if self.num_looks is None:
            return self._state("cancelled" if self.is_cancelled else "in_progress")
        self.num_looks -= 1
        return self._state("in_progress" if self.num_looks else "completed")

    def cancel_batch(self, batch_id: str) -> BatchState:
        self.is_cancelled = True
        return self._state("cancelling")

    def file_content(self, file_id: str) -> Iterator[bytes]:
        for line in reversed(self.lines):
            text = line["body"]["messages"][0]["content"]
            if (text == "b") != (file_id == "errors"):
                continue
            status, body = (400, {"error": {"message": "no b"}}) if text == "b" else (200, answer(text))
            told = {"custom_id": line["custom_id"], "response": {"status_code": status, "body": body}, "error": None}
            whole = json.dumps(told).encode() + b"\n"
            yield whole[:9]
            yield whole[9:]

    def _state(self, status: str) -> BatchState:
        over = status == "completed"
        return BatchState("batch_7", status, len(self.lines), 0, 0, [], ["answers", "errors"] if over else [])


def answer(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": f"about {text}"}}]}


def brought(server: Server) -> list[Future[str]]:
    answers = [Future[str]() for _ in REQUESTS]
    ServerBatch(server, REQUESTS).bring(answers)
    return answers


def test_answers_stand_where_their_requests_did_and_a_fault_stands_for_one():
    first, second, third = brought(BatchServer())
    assert (first.result(0), third.result(0)) == ("about a", "about c")
    with pytest.raises(ServerFault, match="no b"):
        second.result(0)


def test_cancelled_it_is_told_of_in_each_answer():
    server = BatchServer(num_looks=None)
    batch, answers = ServerBatch(server, REQUESTS), [Future[str]() for _ in REQUESTS]
    bringing = Thread(target=batch.bring, args=(answers,), daemon=True)
    bringing.start()
    batch.cancel()
    for each in answers:
        with pytest.raises(ServerFault, match="the batch is cancelled"):
            each.result(10)
    assert batch.is_over


def test_who_leaves_cancels_what_is_not_over():
    server = BatchServer(num_looks=None)
    play(server, '/batch ["x"] [3]', "/quit")
    assert server.is_cancelled
    server = BatchServer(num_looks=1)
    play(server, '/batch ["x"] [3]', WAIT, "/quit")
    assert not server.is_cancelled


def test_a_server_that_goes_away_is_told_of_in_each_answer():
    class Lost(BatchServer):
        def batch(self, batch_id: str) -> BatchState:
            raise ServerFault("does not answer")

    for each in brought(Lost()):
        with pytest.raises(ServerFault, match="does not answer"):
            each.result(0)


def test_the_chat_names_the_servers_batch():
    server = BatchServer(num_looks=1)
    written = play(server, '/batch ["x", "b"] [3, 4]', WAIT, "chat", "/answers")
    assert written.startswith("[batch batch_7: 2 prompts are being answered]\n")
    assert written.count("[batch batch_7 is done: /answers]\n") == 1
    assert "batch batch_7, 1: x\nabout x\n\nbatch batch_7, 2: b\n(failed: no b)\n\n" in written
    assert [line["body"]["max_tokens"] for line in server.lines] == [3, 4]
    assert not server.batched, "no calls beside it"


def test_the_server_pushes_each_answer_before_the_others_are_there():
    with running() as place:
        place.say("hi there")
        place.executor.delay_s = 0.05
        requests = [
            {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": "hello"}]}
            for tokens in (1, *[8] * 40)
        ]
        batch, answers = ServerBatch(Server(place.base_url), requests), [Future[str]() for _ in requests]
        bringing = Thread(target=batch.bring, args=(answers,), daemon=True)
        bringing.start()
        assert answers[0].result(30)
        assert not batch.is_over
        assert not all(answer.done() for answer in answers)
        place.executor.delay_s = 0.0
        bringing.join(30)
        assert batch.is_over
        assert {answer.result(0) for answer in answers[1:]} == {"hi there"}
