from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from service.chat_client.server import Ignored, Server, ServerFault, StreamEvent, Usage
from service.chat_client.session import COMMANDS, Session
from service.chat_client.terminal import Piece, PlainTerminal

WAIT = "until all batches are done"
INTERRUPT = "Ctrl-C at the prompt"


class ScriptedServer(Server):
    """Repeats what the user said, word by word, and notes each request. It runs no batches."""

    def __init__(self, heeds_priority: bool = True) -> None:
        self.heeds_priority = heeds_priority
        self.chats: list[dict[str, Any]] = []
        self.batched: list[Mapping[str, Any]] = []

    def model_names(self) -> list[str]:
        return ["m", "other"]

    def upload(self, lines: Iterable[bytes]) -> str:
        raise ServerFault("there is no such address")

    def complete_chat(self, request: Mapping[str, Any]) -> str:
        self.batched.append(request)
        return f"about {request['messages'][0]['content']}"

    def stream_chat(self, request: Mapping[str, Any]) -> Generator[StreamEvent, None, None]:
        self.chats.append({**request, "messages": [dict(message) for message in request["messages"]]})
        if "priority" in request and not self.heeds_priority:
            raise ServerFault("priority means nothing here", "priority")
        if "temperature" in request and request["temperature"] > 2:
            raise ServerFault("temperature must be at most 2", "temperature")
        if "foo" in request:
            yield Ignored("foo")
        words = request["messages"][-1]["content"].split()
        for word in words:
            if word == "stop":
                raise KeyboardInterrupt
            if word == "fail":
                raise ServerFault("too long")
            yield Piece(f"{word} ", is_reasoning=word.startswith("hm"))
        yield Usage(3, len(words))


def play(server: Server, *lines: str, is_interactive: bool = False) -> str:
    """What is written while the user types these lines."""
    left, written = list(lines), list[str]()

    def read(prompt: str) -> str:
        if not left:
            raise EOFError
        line = left.pop(0)
        if line == INTERRUPT:
            raise KeyboardInterrupt
        if line != WAIT:
            return line
        stop_s = time.monotonic() + 10
        while session._batches.num_running and time.monotonic() < stop_s:
            time.sleep(0.001)
        return ""

    terminal = PlainTerminal(read, written.append, is_interactive=is_interactive)
    session = Session(server, terminal, "m", {"max_tokens": 7})
    session.run()
    assert not left
    return "".join(written)


def contents(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request["messages"]]


def test_a_chat_goes_on_from_what_was_said_until_another_begins():
    server = ScriptedServer()
    assert play(server, "one two", "three", "/new", "", "four", "/quit") == (
        "one two \nthree \na new conversation\nfour \n"
    )
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
    written = play(server, "a stop b", "c fail", "d", "stop", INTERRUPT, "e")
    assert written == "a \n[stopped]\nc \n[failed: too long]\nd \n[stopped]\n[/quit or Ctrl-D leaves]\ne \n"
    assert contents(server.chats[-1]) == [
        ("user", "a stop b"),
        ("assistant", "a "),
        ("user", "d"),
        ("assistant", "d "),
        ("user", "e"),
    ], "what was stopped before anything came was never said"


def test_how_many_answers_failed_is_told():
    lines = iter(["fail", "a", "/load nothing", "fail", "/quit"])
    terminal = PlainTerminal(lambda _: next(lines), lambda _: None, is_interactive=False)
    assert Session(ScriptedServer(), terminal, "m", {}).run() == 2


def test_reasoning_is_shown_and_not_kept():
    server = ScriptedServer()
    assert play(server, "hm1 hm2 yes", "so", "hm3") == "[thinking: hm1 hm2 ]\nyes \nso \n[thinking: hm3 ]\n"
    assert contents(server.chats[1])[1] == ("assistant", "yes ")


def test_who_types_is_told_how_fast_it_came_and_is_safe_from_control_characters():
    server = ScriptedServer()
    written = play(server, "one \x1b[2J\x9b1m two\x07", is_interactive=True)
    text, speed = written.splitlines()
    assert text == "one [2J1m two "
    assert speed.startswith("[3 tokens: the first after 0.")
    assert play(server, "one \x1b[2J") == "one \x1b[2J \n", "what goes into a pipe is as it came"


def test_several_lines_are_one_message_and_no_command():
    server = ScriptedServer()
    play(server, '"""', "one", "", "two", '"""', '"""/quit"""', '"""three', 'four"""', '"""five')
    said = [chat["messages"][-1]["content"] for chat in server.chats]
    assert said == ["one\n\ntwo", "/quit", "three\nfour", "five"]


def test_the_system_message_stands_before_all_else():
    server = ScriptedServer()
    written = play(server, "/system", "/system be brief", "a", "/new", "b", "/system -", "c")
    assert "there is no system message\nsystem: be brief\na \n" in written
    assert "a new conversation; the system message stays\n" in written
    first, second, third = map(contents, server.chats)
    assert first == [("system", "be brief"), ("user", "a")]
    assert second == [("system", "be brief"), ("user", "b")]
    assert third[0] == ("user", "b")


def test_fields_go_with_every_answer_until_they_are_left_to_the_server():
    server = ScriptedServer()
    written = play(server, "/set temperature 0.5", "/set", "a", "/set temperature", "/set max_tokens", "b", "/set")
    assert "temperature is 0.5\nmax_tokens is 7\ntemperature is 0.5\n" in written
    assert "temperature is left to the server\n" in written
    assert written.endswith("everything is left to the server\n")
    assert server.chats[0]["temperature"] == 0.5
    assert not {"temperature", "max_tokens"} & set(server.chats[1])


def test_what_the_server_says_of_a_field_is_told_with_the_way_out():
    written = play(ScriptedServer(), "/set temperature 3", "a", "/set temperature", "/set foo 1", "b")
    assert "[failed: temperature must be at most 2 (/set temperature leaves it to the server)]\n" in written
    assert "b \n[the server ignored fields that it does not know: foo]\n" in written


def test_another_model_answers():
    server = ScriptedServer()
    written = play(server, "/model", "/model none", "/model other", "a")
    assert written == (
        "the model is m; there are: m, other\nthere is no model none; there are: m, other\nthe model is other\na \n"
    )
    assert server.chats[0]["model"] == "other"


def test_a_conversation_is_kept_in_a_file_and_gone_on_with(tmp_path: Path):
    file = tmp_path / "talk.json"
    written = play(ScriptedServer(), "/system be brief", "one", f"/save {file}", "two", f"/save {file}", "/save")
    assert f"saved 3 messages to {file}\n" in written
    assert f"saved 5 messages to {file}\n" in written
    assert written.endswith("/save FILE\n")
    server = ScriptedServer()
    written = play(server, "gone", f"/load {file}", "three", f"/load {file}.not", "four")
    assert f"loaded 5 messages from {file}; the next is yours\n" in written
    assert f"{file}.not cannot be read: No such file or directory\n" in written
    kept = [(each["role"], each["content"]) for each in json.loads(file.read_text())["messages"]]
    assert contents(server.chats[1]) == [*kept, ("user", "three")]
    assert contents(server.chats[2])[-1] == ("user", "four")


def test_the_last_answer_is_given_anew():
    server = ScriptedServer()
    hot, cool = "/set temperature 3", "/set temperature"
    written = play(server, "/retry", "one", "two", "/retry", hot, "/retry", cool, "three")
    assert written.startswith("there is no answer to generate again\none \ntwo \ntwo \n")
    assert contents(server.chats[2]) == contents(server.chats[1])
    assert contents(server.chats[-1])[-2:] == [("assistant", "two "), ("user", "three")], "one failed in vain"


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
    written = play(ScriptedServer(), "/batch hello", "/what", "/set n 2", "/set 1x 2", "/set top_p", "/help")
    assert "the prompts stand in square brackets; there is 'hello'\nfor example: /batch [" in written
    assert "there is no command /what; /help names them all\n" in written
    assert "n cannot be set here: one answer is shown at a time\n" in written
    assert "'1x' is not the name of a request field, such as temperature\n" in written
    assert "top_p is not set; /set top_p VALUE sets it\n" in written
    assert "/answers         show the answers of the batches that are done" in written


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_tells_what_it_did(name: str):
    assert play(ScriptedServer(), name).strip()


@pytest.mark.parametrize("line", ["/model", "/load x", "/answers"])
def test_ctrl_c_stops_a_command_and_not_the_program(line: str, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, line.split()[0], COMMANDS[line.split()[0]]._replace(carry_out=interrupt))
    assert play(ScriptedServer(), line, "a") == "[stopped]\na \n"
