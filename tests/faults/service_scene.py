"""Concurrent calls of every kind to the real app behind the real HTTP server; one client leaves.

The model's output depends on the prompt alone, so an answer is the same whatever happens to the others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import httpx

from service.api.request_log import log_exchange
from service.process.log_writer import LogWriter
from tests.api.running_server import END_ID, RunningServer, Scene
from tests.api.wire import CHAT, COMPLETIONS, chat, completion
from tests.engine.toy_model import cells_of, next_token
from tests.text import tiny_tokenizers

_TIMEOUT_S = 10.0
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A client that makes its own context reads every certificate of the machine, which takes longer than the scene."""
_NOW = {"type": "function", "function": {"name": "now"}}
_CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
_SENTENCE = "The quick brown fox jumps over the lazy dog. Requests join and leave the batch."


@dataclass(frozen=True)
class Call:
    """streams: the answer is streamed. leaves: the client disconnects after the first frame."""

    name: str
    path: str
    body: Mapping[str, Any]
    streams: bool = False
    leaves: bool = False


def _chat(name: str, **fields: Any) -> Call:
    return Call(name, CHAT, chat(name, **fields), bool(fields.get("stream")))


def _completion(name: str, **fields: Any) -> Call:
    return Call(name, COMPLETIONS, completion(prompt=name, **fields), bool(fields.get("stream")))


CALLS: Sequence[Call] = (
    _chat("plain", max_tokens=6),
    _chat("plain stream", max_tokens=6, stream=True, stream_options={"include_usage": True}),
    _chat("stop", max_tokens=30, stop=["lazy"], stream=True),
    _chat("call stream", max_tokens=60, tools=[_NOW], stream=True),
    _chat("logprobs", max_tokens=5, logprobs=True, top_logprobs=1, stream=True),
    _completion("choices", n=2, max_tokens=6, logprobs=1, echo=True),
    _completion("form", max_tokens=9, stream=True),
    _completion("beams", max_tokens=3, use_beam_search=True, beam_width=2, n=2),
    _completion("words", max_tokens=4, bad_words=["dog"], presence_penalty=0.5),
    Call("leaves", COMPLETIONS, completion(prompt="leaves", max_tokens=60, ignore_eos=True, stream=True), leaves=True),
    Call("tokens", "/tokenize", {"model": "alias", "prompt": "hello world"}),
    Call("text", "/detokenize", {"model": "alias", "tokens": [50, 51, 52]}),
)
LONG_CHAT = _chat("long stream", max_tokens=300, ignore_eos=True, stream=True)
LONG_COMPLETION = _completion("long", max_tokens=300, ignore_eos=True)
CANARY = CALLS[0]
A_FEW = tuple(call for call in CALLS if call.name in {"plain stream", "stop", "call stream", "choices"})
TWO = tuple(call for call in CALLS if call.name in {"plain stream", "choices"})


@dataclass(frozen=True)
class Answer:
    """kind: whole; refused, with an error in the API's form, perhaps within the stream; broken: the connection ended
    before the answer did."""

    kind: Literal["whole", "refused", "broken"]
    content: Any = None


class ServiceScene:
    """A running server and its clients. Deaths of the engine are recorded."""

    def __init__(self) -> None:
        self.server = RunningServer(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE, watchers=[log_exchange]))
        self._num_played = 0
        self.server.start()
        self.server.play(_script(self.server))

    def play(self, calls: Sequence[Call] = CALLS) -> dict[str, Answer]:
        """The answers, by call name. Each must come within a time limit."""
        self._num_played += 1
        return asyncio.run(self._call_all([self._never_asked_before(call) for call in calls]))

    def is_healthy(self) -> bool:
        return httpx.get(f"{self.server.base_url}/health", timeout=_TIMEOUT_S, verify=_NO_TLS).status_code == 200

    def close(self) -> None:
        self.server.stop()

    def _never_asked_before(self, call: Call) -> Call:
        """The call with a grammar that must be compiled anew, but allows the same output."""
        if call.name != "form":
            return call
        pattern = f"[a-z]{{3}}[0-9]{{2}}|!{{{self._num_played}}}"
        return replace(call, body={**call.body, "structured_outputs": {"regex": pattern}})

    async def _call_all(self, calls: Sequence[Call]) -> dict[str, Answer]:
        async with httpx.AsyncClient(base_url=self.server.base_url, timeout=_TIMEOUT_S, verify=_NO_TLS) as http:
            answers = await asyncio.gather(*[_answer(http, call) for call in calls])
        return {call.name: answer for call, answer in zip(calls, answers, strict=True)}


def _script(server: RunningServer) -> Any:
    @cache
    def said(prompt: tuple[int, ...]) -> list[int]:
        text = server.tokenizer.decode(prompt)
        ids = server.tokenizer.encode(_CALL if "call" in text else _SENTENCE, add_special_tokens=False)
        return [*ids, END_ID]

    def script(prompt: Sequence[int], so_far: Sequence[int], seed: int) -> int:
        ids = said(tuple(prompt))
        return ids[len(so_far)] if len(so_far) < len(ids) else next_token(cells_of(so_far[-3:]), 0, END_ID)

    return script


async def _answer(http: httpx.AsyncClient, call: Call) -> Answer:
    try:
        if call.leaves:
            return await _leave(http, call)
        response = await http.post(call.path, json=dict(call.body))
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        return Answer("broken")
    if response.headers["content-type"].startswith("text/plain"):
        return Answer("broken")  # the HTTP server's own words: the app had none
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "armed" not in error["message"], "nothing leaks"
        return Answer("refused", response.status_code)
    return _of_stream(response.text) if call.streams else Answer("whole", _of_body(response.json()))


async def _leave(http: httpx.AsyncClient, call: Call) -> Answer:
    async with http.stream("POST", call.path, json=dict(call.body)) as response:
        async for _ in response.aiter_bytes():
            break
    return Answer("whole" if response.status_code == 200 else "refused")


def _of_body(body: dict[str, Any]) -> Any:
    """The parts that do not depend on time, or on earlier requests."""
    for choice in body.get("choices", []):
        for made in (choice.get("message") or {}).get("tool_calls") or []:
            made["id"] = "made"
    usage = body.get("usage") or {}
    return body.get("choices", body), usage.get("completion_tokens")


def _of_stream(text: str) -> Answer:
    """The pieces of each choice joined, since where they are cut depends on timing."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    data = [frame.removeprefix("data: ") for frame in frames if not frame.startswith(":")]
    if not data or data[-1] != "[DONE]":
        return Answer("broken")
    assert data.count("[DONE]") == 1
    events = [json.loads(each) for each in data[:-1]]
    if "error" in events[-1]:
        assert "armed" not in events[-1]["error"]["message"], "nothing leaks"
        return Answer("refused")
    said: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            _add(said.setdefault(choice["index"], {}), choice)
    return Answer("whole", said)


def _add(said: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta", choice)
    said["text"] = said.get("text", "") + (delta.get("text") or delta.get("content") or "")
    for made in delta.get("tool_calls") or []:
        function = made.get("function") or {}
        said["calls"] = said.get("calls", "") + (function.get("name") or "") + (function.get("arguments") or "")
    said["tokens"] = said.get("tokens", 0) + len((choice.get("logprobs") or {}).get("content") or [])
    if choice["finish_reason"] is not None:
        assert "finish_reason" not in said, "a choice ends once"
        said["finish_reason"] = choice["finish_reason"]


@contextmanager
def logging_to_nowhere() -> Iterator[LogWriter]:
    """The log as `serve` sets it up, with a reader that discards everything."""
    root, level, descriptor = logging.getLogger(), logging.getLogger().level, os.open(os.devnull, os.O_WRONLY)
    raises, logging.raiseExceptions = logging.raiseExceptions, False
    with LogWriter(descriptor) as log:
        handlers, root.handlers = root.handlers, [log]
        root.setLevel(logging.INFO)
        try:
            yield log
        finally:
            root.handlers, logging.raiseExceptions = handlers, raises
            root.setLevel(level)
    os.close(descriptor)
