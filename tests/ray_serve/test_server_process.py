"""A real server as Ray's replicas have it: a child process on a Unix socket."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.errors import ServerError
from service.ray_serve.call import AnswerHead, Call
from service.ray_serve.replica import BUSY, WAITING, load_of
from service.ray_serve.server_process import ServerProcess
from tests.e2e.server_process import write_dummy_folder

MODEL = "dummy"
FLAGS = f"--load-format dummy --device cpu --dtype float32 --kv-cache-memory 4MiB --served-model-name {MODEL}".split()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_dummy_folder(tmp_path_factory.mktemp("models") / "dummy")
    started = ServerProcess(["service", "serve"], [str(folder), *FLAGS])
    yield started
    started.stop(30)


def completion(**fields: Any) -> Call:
    body = {"model": MODEL, "prompt": "x", "ignore_eos": True, **fields}
    headers = ((b"content-type", b"application/json"), (b"host", b"localhost"))
    return Call("POST", "/v1/completions", headers, json.dumps(body).encode(), None)


async def whole(server: ServerProcess, call: Call) -> tuple[AnswerHead, bytes]:
    head, *pieces = [part async for part in server.exchange(call)]
    return head, b"".join(pieces)


def test_answers_are_the_servers(loop: asyncio.Runner, server: ServerProcess):
    head, body = loop.run(whole(server, completion(max_tokens=4)))
    assert head.status == 200 and json.loads(body)["usage"]["completion_tokens"] == 4
    head, body = loop.run(whole(server, completion(model="other")))
    assert head.status == 404 and json.loads(body)["error"]["code"] == "model_not_found"
    head, body = loop.run(whole(server, completion(max_tokens=4, stream=True)))
    assert (b"content-type", b"text/event-stream; charset=utf-8") in head.headers
    assert body.endswith(b"data: [DONE]\n\n")
    assert "transfer-encoding" not in dict(head.headers)


def test_an_iterator_that_is_closed_ends_the_request(loop: asyncio.Runner, server: ServerProcess):
    async def leave() -> None:
        parts = server.exchange(completion(max_tokens=3000, stream=True))
        assert (await anext(parts)).status == 200
        await anext(parts)
        await parts.aclose()

    loop.run(leave())
    deadline_s = time.monotonic() + 5
    while " 1.0" in _line("headrace_requests_running", loop.run(server.text("/metrics"))):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    generated = _line('headrace_tokens_total{kind="generated"}', loop.run(server.text("/metrics")))
    assert float(generated.split()[1]) < 3000, "it did not run to its end"


def test_its_load_is_read_from_its_metrics(loop: asyncio.Runner, server: ServerProcess):
    assert load_of(loop.run(server.text("/metrics")), 4) == {WAITING: 0, BUSY: 0}


def test_one_that_ends_before_it_is_ready_is_told(tmp_path: Any):
    with pytest.raises(ServerError, match="status 2"):
        ServerProcess(["service", "serve"], [str(tmp_path / "no-such-model")])


def test_its_end(loop: asyncio.Runner, tmp_path: Any, server: ServerProcess):
    """The last one: the server is gone afterwards."""

    async def lose() -> None:
        parts = server.exchange(completion(max_tokens=3000, stream=True))
        await anext(parts)
        server._process.kill()
        async for _ in parts:
            pass

    with pytest.raises(httpx.TransportError):
        loop.run(lose())
    assert server.wait() != 0
    with pytest.raises(httpx.TransportError):
        loop.run(server.text("/health"))


def _line(name: str, text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{name} "))
