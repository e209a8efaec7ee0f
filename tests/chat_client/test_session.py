from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any

from service.chat_client.server import Server, ServerFault
from service.chat_client.session import Session

WAIT = "until all batches are done"


class ScriptedServer(Server):
    """Repeats what the user said, word by word, and notes each request."""

    def __init__(self, heeds_priority: bool = True) -> None:
        self.heeds_priority = heeds_priority
        self.chats: list[Mapping[str, Any]] = []
        self.batched: list[Mapping[str, Any]] = []

    def complete_chat(self, request: Mapping[str, Any]) -> str:
        self.batched.append(request)
        return f"about {request['messages'][0]['content']}"

    def stream_chat(self, request: Mapping[str, Any]) -> Generator[str, None, None]:
        self.chats.append({**request, "messages": [dict(message) for message in request["messages"]]})
        if "priority" in request and not self.heeds_priority:
            raise ServerFault("priority means nothing here", "priority")
        for word in request["messages"][-1]["content"].split():
            if word == "stop":
                raise KeyboardInterrupt
            if word == "fail":
                raise ServerFault("too long")
            yield f"{word} "


def play(server: Server, *lines: str) -> str:
    """What is written while the user types these lines."""
    left, written = list(lines), list[str]()

    def read(prompt: str) -> str:
        if not left:
            raise EOFError
        line = left.pop(0)
        if line != WAIT:
            return line
        stop_s = time.monotonic() + 10
        while session._batches.num_running and time.monotonic() < stop_s:
            time.sleep(0.001)
        return ""

    session = Session(server, "m", read, written.append, max_tokens=7)
    session.run()
    assert not left
    return "".join(written)


def contents(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request["messages"]]


def test_a_chat_goes_on_from_what_was_said_until_another_begins():
    server = ScriptedServer()
    assert play(server, "one two", "three", "/new", "", "four", "/quit") == "one two \nthree \nfour \n"
    first, second, third = server.chats
    assert contents(first) == [("user", "one two")]
    assert contents(second) == [("user", "one two"), ("assistant", "one two "), ("user", "three")]
    assert contents(third) == [("user", "four")]
    assert all((chat["model"], chat["max_tokens"], chat["priority"]) == ("m", 7, 1) for chat in server.chats)


def test_where_the_server_heeds_no_priority_it_is_asked_for_once():
    server = ScriptedServer(heeds_priority=False)
    assert play(server, "one", "two") == "one \ntwo \n"
    assert ["priority" in chat for chat in server.chats] == [True, False, False]


def test_an_answer_that_is_stopped_stays_and_one_that_fails_takes_its_question_along():
    server = ScriptedServer()
    assert play(server, "a stop b", "c fail", "d") == "a  [stopped]\nc [failed: too long]\nd \n"
    assert contents(server.chats[-1]) == [("user", "a stop b"), ("assistant", "a "), ("user", "d")]


def test_a_batch_runs_behind_the_chat_and_its_answers_wait():
    server = ScriptedServer()
    written = play(server, '/batch ["x", "y"] [3, 4]', "chat", WAIT, "chat", "/answers", "/answers")
    assert written.startswith("[batch 1: 2 prompts are being answered]\n")
    assert written.count("[batch 1 is done: /answers]\n") == 1
    assert written.index("chat") < written.index("batch 1, 1: x\nabout x\n\nbatch 1, 2: y\nabout y\n\n")
    assert written.endswith("no batch is done; 0 are being answered\n")
    assert sorted((r["messages"][0]["content"], r["max_tokens"]) for r in server.batched) == [("x", 3), ("y", 4)]
    assert not any("priority" in request for request in server.batched), "the chat goes first"
    assert len(contents(server.chats[1])) == 3, "a batch is no part of the conversation"


def test_slips_are_explained():
    written = play(ScriptedServer(), "/batch hello", "/what", "/help")
    assert "the prompts stand in square brackets; there is 'hello'\nfor example: /batch [" in written
    assert "there is no command /what; /help names them all\n" in written
    assert "/answers  the answers of the batches that are done" in written
