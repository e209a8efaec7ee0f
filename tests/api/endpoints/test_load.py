from __future__ import annotations

import threading
import time

import httpx

from tests.api.running_server import RunningServer
from tests.api.wire import COMPLETIONS, completion


def test_counts_requests_that_run_or_wait(server: RunningServer, http: httpx.Client) -> None:
    assert http.get("/load").json() == {"server_load": 0}
    server.executor.gate.clear()
    call = threading.Thread(target=lambda: http.post(COMPLETIONS, json=completion(prompt=["a", "b"])))
    call.start()
    deadline_s = time.monotonic() + 10
    while (load := http.get("/load").json()) != {"server_load": 2} and time.monotonic() < deadline_s:
        time.sleep(0.005)
    server.executor.gate.set()
    call.join(10)
    assert load == {"server_load": 2}
