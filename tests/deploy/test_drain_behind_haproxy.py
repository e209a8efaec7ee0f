"""SIGTERM to one of two replicas under load: every call is answered in whole."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx

from service.settings.settings import Settings
from tests.api.running_server import MODEL, Scene, running
from tests.deploy.balancer import BUFFER_BYTES, CHECK_EVERY_S, balanced
from tests.deploy.deployment import services
from tests.e2e.server_process import ServerProcess, write_dummy_folder

CLIENTS = 6
FLAGS = f"--load-format dummy --device cpu --dtype float32 --kv-cache-memory 8MiB --served-model-name {MODEL}".split()


def calls(num_tokens: int) -> list[bytes]:
    """A stream, an answer in one piece, and a call that no proxy can hold in its buffer."""
    fields = f'"model": "{MODEL}", "prompt": "x", "max_tokens": {num_tokens}, "ignore_eos": true'
    return [
        f'{{{fields}, "stream": true}}'.encode(),
        f"{{{fields}}}".encode(),
        f"{{{fields}{' ' * BUFFER_BYTES}}}".encode(),
    ]


def outcome(http: httpx.Client, body: bytes) -> str:
    """ok, or what went wrong."""
    try:
        response = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    except httpx.TransportError as fault:
        return repr(fault)
    is_whole = (response.text.endswith("data: [DONE]\n\n") and '"error"' not in response.text) or b"stream" not in body
    return "ok" if response.status_code == 200 and is_whole else f"{response.status_code} {response.text[-200:]}"


def test_no_call_is_lost_when_a_replica_is_told_to_end(tmp_path: Path):
    outcomes: list[str] = []
    over = threading.Event()
    delay_s = CHECK_EVERY_S + 1

    def call_on(first: int) -> None:
        with httpx.Client(base_url=balancer, timeout=30) as http:
            kinds = calls(num_tokens=16)
            while not over.is_set():
                first += 1
                outcomes.append(outcome(http, kinds[first % len(kinds)]))
                time.sleep(0.05)

    replica = ServerProcess(str(write_dummy_folder(tmp_path / "dummy")), *FLAGS, "--shutdown-delay", str(delay_s))
    with (
        running(Scene()) as staying,
        replica as leaving,
        balanced([leaving.url, staying.base_url]) as balancer,
    ):
        clients = [threading.Thread(target=call_on, args=(i,), daemon=True) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        time.sleep(1)
        leaving.terminate()
        terminated_s = time.monotonic()
        while httpx.get(f"{leaving.url}/ready").status_code == 200:
            assert time.monotonic() < terminated_s + delay_s
        assert httpx.get(f"{leaving.url}/health").status_code == 200, "it takes what comes all the same"
        with httpx.Client(base_url=leaving.url) as http:
            assert outcome(http, calls(1)[1]) == "ok"
        assert leaving.wait(30) == 0
        over.set()
        for client in clients:
            client.join()
    assert len(outcomes) > 50
    assert {*outcomes} == {"ok"}


def test_the_replicas_that_are_shipped_take_calls_until_the_router_has_heard():
    for name in ("headrace-0", "headrace-1"):
        delay_s = float(services()[name]["environment"]["HEADRACE_SHUTDOWN_DELAY"])
        assert delay_s > 2 * CHECK_EVERY_S, "a check may just have been, and its answer takes time"
    assert Settings.model_fields["shutdown_delay"].default == 0, "who has no balancer need not wait"
