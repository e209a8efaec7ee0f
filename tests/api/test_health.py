from __future__ import annotations

import time
from dataclasses import replace

import httpx

from service.api.serving_state import Phase
from tests.api.running_server import Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of


def test_loading_ready_draining() -> None:
    with running(Scene(ready=False)) as server, httpx.Client(base_url=server.base_url) as http:
        assert http.get("/health").status_code == 503
        assert http.get("/ready").json() == {"status": "loading"}
        assert http.get("/metrics").status_code == 200
        assert http.get("/version").status_code == 200
        for response in (
            http.post(COMPLETIONS, json=completion()),
            http.post(CHAT, json=chat("hi")),
            http.get("/v1/models"),
        ):
            assert response.status_code == 503
            assert error_of(response)["code"] == "model_loading"
            assert int(response.headers["retry-after"]) >= 1

        server.make_ready()
        assert http.get("/health").status_code == http.get("/ready").status_code == 200
        assert http.post(COMPLETIONS, json=completion()).status_code == 200

        server.on_loop(server.state.set_draining)
        assert http.get("/ready").status_code == http.get("/health").status_code == 503
        assert http.get("/ready").json() == {"status": "draining"}
        response = http.post(COMPLETIONS, json=completion())
        assert (response.status_code, error_of(response)["code"]) == (503, "shutting_down")
        assert http.get("/v1/models").status_code == 200


def test_sagemakers_name_for_it() -> None:
    config = replace(Scene().config, api_keys=("secret",))
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        assert http.get("/ping").status_code == http.post("/ping").status_code == 200
        server.on_loop(server.state.set_draining)
        assert http.get("/ping").json() == http.get("/health").json() == {"status": "draining"}
        assert http.get("/ping").status_code == 503


def test_failed() -> None:
    with running(Scene(ready=False)) as server, httpx.Client(base_url=server.base_url) as http:
        server.on_loop(server.state.set_failed)
        assert server.state.phase is Phase.FAILED
        assert http.get("/health").json() == {"status": "failed"}
        assert http.post(COMPLETIONS, json=completion()).status_code == 503


def test_a_stuck_engine_is_not_healthy() -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        server.executor.gate.clear()
        with http.stream("POST", COMPLETIONS, json=completion(stream=True)):
            deadline_s = time.monotonic() + 5
            while http.get("/health").status_code == 200:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            assert http.get("/health").json() == {"status": "stuck"}
            assert http.get("/ready").status_code == 200
            server.executor.gate.set()
        server.check_idle()
        assert http.get("/health").status_code == 200
