"""Against a server of a few lines: what it is sent, and what becomes of every kind of answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from service.chat_client.server import Ignored, Server, ServerFault, Usage
from service.chat_client.terminal import Piece

EVENT = 'data: {{"choices":[{{"delta":{{"content":"{}"}}}}]}}\n\n'


class Answers(BaseHTTPRequestHandler):
    """path -> status and body."""

    answers: dict[str, tuple[int, str]]
    headers_too: ClassVar[dict[str, str]] = {}
    seen: list[tuple[str, str | None, Any]]

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.seen.append((self.path, self.headers["Authorization"], body))
        status, text = self.answers[self.path]
        self.send_response(status)
        for name, value in self.headers_too.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode(errors="surrogateescape"))

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def listening() -> Iterator[tuple[str, type[Answers]]]:
    handler = type("Handler", (Answers,), {"answers": {}, "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_models_are_named_and_the_key_is_sent(listening: tuple[str, type[Answers]], end: str):
    url, handler = listening
    handler.answers["/v1/models"] = 200, '{"data": [{"id": "a"}, {"id": "b"}]}'
    assert Server(url + end, "secret").model_names() == ["a", "b"]
    assert handler.seen == [("/v1/models", "Bearer secret", None)]


def test_an_answer_whole_and_streamed(listening: tuple[str, type[Answers]]):
    url, handler = listening
    path, server = "/v1/chat/completions", Server(url)
    handler.answers[path] = 200, '{"choices": [{"message": {"content": "hi"}}]}'
    assert server.complete_chat({"model": "m"}) == "hi"
    start = 'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n: keep-alive\n\n'
    handler.answers[path] = 200, start + EVENT.format("h") + EVENT.format("ü") + "data: [DONE]\n\n"
    assert list(server.stream_chat({"model": "m"})) == [Piece("h"), Piece("ü")]
    streamed = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert handler.seen == [(path, None, {"model": "m"}), (path, None, streamed)]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_else_a_stream_tells(listening: tuple[str, type[Answers]], name: str):
    url, handler = listening
    handler.headers_too = {"x-ignored-params": "a,b"}
    thought = f'data: {{"choices":[{{"delta":{{"{name}":"hm","content":null}}}}]}}\n\n'
    usage = 'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
    handler.answers["/v1/chat/completions"] = 200, thought + EVENT.format("h") + usage + "data: [DONE]\n\n"
    told = [Ignored("a,b"), Piece("hm", is_reasoning=True), Piece("h"), Usage(3, 5)]
    assert list(Server(url).stream_chat({})) == told


def test_faults_are_told_in_the_servers_words(listening: tuple[str, type[Answers]]):
    url, handler = listening
    path, server = "/v1/chat/completions", Server(url)
    error = '{"error": {"message": "too long", "param": "messages"}}'
    handler.answers[path] = 400, error
    with pytest.raises(ServerFault, match="too long") as fault:
        server.complete_chat({})
    assert fault.value.param == "messages"
    handler.answers[path] = 200, EVENT.format("h") + f"data: {error}\n\n"
    stream = server.stream_chat({})
    assert next(stream) == Piece("h")
    with pytest.raises(ServerFault, match="too long"):
        next(stream)
    handler.answers[path] = 502, "<html>"
    with pytest.raises(ServerFault, match="the server answered 502"):
        server.complete_chat({})


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"data": 1}', '{"data": [{}]}', '{"choices": []}', "\udcff"])
def test_answers_of_another_kind_of_server_are_faults(listening: tuple[str, type[Answers]], body: str):
    url, handler = listening
    handler.answers = dict.fromkeys(("/v1/models", "/v1/chat/completions"), (200, body))
    for call in (Server(url).model_names, lambda: Server(url).complete_chat({})):
        with pytest.raises(ServerFault, match="otherwise than OpenAI's do"):
            call()
    handler.answers = {"/v1/models": (200, '{"data": []}'), "/v1/chat/completions": (200, 'data: {"a": 1}\n\n')}
    with pytest.raises(ServerFault, match="names no model"):
        Server(url).model_names()
    with pytest.raises(ServerFault, match="otherwise than OpenAI's do"):
        list(Server(url).stream_chat({}))


@pytest.mark.parametrize("url", ["ftp://somewhere", "http://", "localhost:99999", "localhost:port", "http://[::1"])
def test_what_is_no_address(url: str):
    with pytest.raises(ServerFault, match="is not the address of a server"):
        Server(url)


def test_who_does_not_answer():
    with pytest.raises(ServerFault, match=r"the server at 127\.0\.0\.1:1 does not answer"):
        Server("127.0.0.1:1").model_names()
