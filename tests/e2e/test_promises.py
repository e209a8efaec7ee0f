"""Those of the guarantees of docs/production.md that no other test shows whole."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.config import SchedulerConfig
from service.core.iteration import IterationPlan, IterationResult
from service.engine.async_engine import AsyncEngine
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of
from tests.e2e.server_process import ServerProcess, write_dummy_folder
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.toy_model import ToyExecutor
from tests.manual_clock import ManualClock

FREED_WITHIN_S = 2
HEALTH_TELLS_WITHIN_S = 10
ENDS_WITHIN_S = 10

ENDLESS: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True, "n": 2}


def ask(server: RunningServer, **fields: Any) -> None:
    httpx.post(f"{server.base_url}{COMPLETIONS}", json=completion(**fields), timeout=20)


def end_by_length(server: RunningServer) -> None:
    ask(server, max_tokens=3)


def end_by_a_stop_string(server: RunningServer) -> None:
    server.say("one two three")
    ask(server, stop="two", n=3, stream=True)


def end_by_a_failed_draw(server: RunningServer) -> None:
    server.play(lambda prompt, so_far, seed: 75 if len(so_far) < 3 else -1)
    ask(server, stream=True, n=2)


def end_by_a_fault_of_the_device(server: RunningServer) -> None:
    server.executor.fault = ValueError("broken")
    ask(server, prompt=["a", "b"])


def end_by_a_refusal(server: RunningServer) -> None:
    ask(server, prompt=[[75] * 10, [75] * 5000])


def end_by_leaving(server: RunningServer, *, stream: bool) -> None:
    """While it runs, with others of the same call still waiting."""
    server.executor.delay_s = 0.002
    content = json.dumps(completion(stream=stream, prompt=["a"] * 40, **ENDLESS)).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
    before = server.executor.num_iterations
    with socket.create_connection(("127.0.0.1", int(server.base_url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
        deadline_s = time.monotonic() + 10
        while server.executor.num_iterations < before + 5:
            assert time.monotonic() < deadline_s
            time.sleep(0.002)


def end_by_waiting_too_long(server: RunningServer) -> None:
    server.executor.delay_s = 0.01
    ask(server, prompt=["a"] * 40, max_tokens=30, ignore_eos=True)


def leave_a_stream(server: RunningServer) -> None:
    end_by_leaving(server, stream=True)


def leave_before_the_answer(server: RunningServer) -> None:
    end_by_leaving(server, stream=False)


@pytest.mark.parametrize(
    "end",
    [
        end_by_length,
        end_by_a_stop_string,
        end_by_a_failed_draw,
        end_by_a_fault_of_the_device,
        end_by_a_refusal,
        end_by_waiting_too_long,
        leave_a_stream,
        leave_before_the_answer,
    ],
)
def test_what_a_request_held_is_free_within_two_seconds_however_it_ended(end: Callable[[RunningServer], None]) -> None:
    """Its blocks, its seats in the batch, its places in the queue, its tasks."""
    scheduler = replace(Scene().scheduler, max_num_seqs=32, max_waiting_s=0.3)
    with running(Scene(scheduler=scheduler)) as server:
        server.play(lambda prompt, so_far, seed: 75)
        end(server)
        server.check_idle(within_s=FREED_WITHIN_S)
        server.reset()
        assert httpx.post(f"{server.base_url}{COMPLETIONS}", json=completion()).status_code == 200


class StoppedDevice(ToyExecutor):
    """Never ends an iteration before `gate` is set."""

    def __init__(self) -> None:
        super().__init__(64, 4, VOCABULARY)
        self.gate = threading.Event()
        self.has_begun = threading.Event()

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.has_begun.set()
        assert self.gate.wait(20)
        return super().execute(plan)


def test_health_tells_of_an_iteration_that_hangs_after_ten_seconds_and_of_a_slow_one_not_before() -> None:
    device, clock = StoppedDevice(), ManualClock(100.0)

    async def scene() -> None:
        harness = Harness(max_num_seqs=2, executor=device)
        config = SchedulerConfig(2, 16, 0.0, 9, 1000)
        engine = AsyncEngine(harness.engine, harness.blocks, config, clock, on_death=lambda fault: None)
        engine.start()
        assert engine.ailment() is None
        engine.submit(harness.request((1,), 2))
        assert await asyncio.to_thread(device.has_begun.wait, 10)
        clock.advance(HEALTH_TELLS_WITHIN_S / 2)
        assert engine.ailment() is None
        clock.advance(HEALTH_TELLS_WITHIN_S / 2 + 0.001)
        assert engine.ailment() is not None
        device.gate.set()
        await engine.drain(10.0)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("path", "body"), [(COMPLETIONS, completion(prompt="x" * 1500)), (CHAT, chat("x" * 1500))], ids=["text", "chat"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_overload_is_refused_with_retry_after_before_any_text_is_read(
    path: str, body: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long is counted, not timed: rendering, tokenizing, iterations."""
    work: list[str] = []

    def noted(self: object, *arguments: object, name: str, **options: object) -> Any:
        work.append(name)
        return untouched[name](self, *arguments, **options)

    untouched = {
        "encode": Tokenizer.encode,
        "encode_rendered": Tokenizer.encode_rendered,
        "render": ChatTemplate.render,
    }
    scheduler = replace(Scene().scheduler, max_num_seqs=1, max_waiting_requests=2)
    with running(Scene(scheduler=scheduler)) as server, httpx.Client(base_url=server.base_url) as http:
        server.executor.gate.clear()
        with http.stream("POST", COMPLETIONS, json=completion(prompt=["a", "b"], stream=True)):
            deadline_s = time.monotonic() + 10
            while not server.executor.num_iterations:  # one has begun, and no other can before it ends
                assert time.monotonic() < deadline_s
                time.sleep(0.001)
            for name in untouched:
                owner = ChatTemplate if name == "render" else Tokenizer
                monkeypatch.setattr(owner, name, partialmethod(noted, name=name))
            refused = [http.post(path, json=body | {"stream": stream}) for _ in range(20)]
            assert work == []
            assert server.executor.num_iterations == 1
        server.executor.gate.set()
    for answer in refused:
        assert (answer.status_code, error_of(answer)["code"]) == (503, "overloaded")
        assert int(answer.headers["retry-after"]) >= 1


def test_a_device_that_is_lost_ends_the_process_with_a_status_within_ten_seconds(tmp_path: Path) -> None:
    """Every launch fails from some moment on, as after an illegal access: all streams are told."""
    flags = "--load-format dummy --device cpu --kv-cache-memory 8MiB".split()
    body = {"model": "dummy", "prompt": "x", "max_tokens": 50, "ignore_eos": True, "stream": True}
    folder = str(write_dummy_folder(tmp_path / "dummy"))
    ends: list[list[str]] = []

    def read(url: str) -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            try:
                response = http.send(http.build_request("POST", COMPLETIONS, json=body), stream=True)
            except (httpx.ConnectError, httpx.ReadError):
                return  # it came when nobody took connections any more; a stream that has begun has no such way out
            lines = [line for line in response.iter_lines() if line]
        if response.status_code == 200:
            ends.append(lines[-2:])

    with ServerProcess(folder, *flags, module="tests.e2e.lost_device") as server:
        began_s = time.monotonic()
        readers = [threading.Thread(target=read, args=(server.url,)) for _ in range(8)]
        for reader in readers:
            reader.start()
        while server.process.poll() is None and time.monotonic() < began_s + ENDS_WITHIN_S:
            try:
                if httpx.get(f"{server.url}/health").status_code == 200:
                    httpx.post(f"{server.url}/v1/completions", json=body | {"stream": False}, timeout=60)
            except httpx.TransportError:
                time.sleep(0.05)  # its listener is closed
        assert server.wait(1) == 1
        for reader in readers:
            reader.join(10)
    assert ends, "some had begun"
    for error, done in ends:
        assert error.startswith('data: {"error":')
        assert done == "data: [DONE]"
