from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from service.api.serving_state import Phase
from service.core.iteration import INVALID_TOKEN_ID
from service.kvcache.block_manager import Fit
from service.scheduler.admission import OnDemandAdmission
from tests.api.running_server import END_ID, Scene, running
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

        server.on_loop(server.state.announce_end)
        assert (http.get("/ready").status_code, http.get("/ready").json()) == (503, {"status": "draining"})
        assert http.get("/health").status_code == http.post(COMPLETIONS, json=completion()).status_code == 200

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
        told = {"status": "draining", "reason": "The server is shutting down."}
        assert http.get("/ping").json() == http.get("/health").json() == told
        assert http.get("/ping").status_code == 503


def test_failed() -> None:
    with running(Scene(ready=False)) as server, httpx.Client(base_url=server.base_url) as http:
        server.on_loop(server.state.set_failed)
        assert server.state.phase is Phase.FAILED
        assert http.get("/health").json()["status"] == "failed"
        assert http.post(COMPLETIONS, json=completion()).status_code == 503


def test_a_stuck_engine_is_not_healthy() -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        server.executor.gate.clear()
        with http.stream("POST", COMPLETIONS, json=completion(stream=True)):
            deadline_s = time.monotonic() + 5
            while http.get("/health").status_code == 200:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            told = http.get("/health").json()
            assert (told["status"], told["reason"]) == ("stuck", "an iteration has run for 1 s")
            assert http.get("/ready").status_code == 200
            server.executor.gate.set()
        server.check_idle()
        assert http.get("/health").status_code == 200


def test_a_model_that_answers_nobody_any_more_is_not_healthy_and_heals_by_itself() -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        server.play(lambda prompt, so_far, seed: INVALID_TOKEN_ID)
        statuses = [http.post(COMPLETIONS, json=completion()).status_code for _ in range(4)]
        assert statuses == [500] * 4
        health = http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failing")
        assert "in a row failed, and so did a probe request" in health.json()["reason"]
        assert server.metric("headrace_failed_iterations_in_a_row") >= 3
        server.say("well again")
        wait_until(lambda: http.get("/health").status_code == 200)
        assert server.metric("headrace_failed_iterations_in_a_row") == 0
        server.check_idle()


def test_one_clients_bad_request_does_not_make_the_server_unhealthy() -> None:
    """Alone, and again and again, as SDKs do with a 500; the other's requests are answered in between."""
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        bad = server.tokenizer.encode("bad", add_special_tokens=False)
        server.play(lambda prompt, so_far, seed: INVALID_TOKEN_ID if list(prompt) == bad else END_ID)
        for _ in range(10):
            assert http.post(COMPLETIONS, json=completion(prompt=bad)).status_code == 500
            assert http.get("/health").status_code == 200
        assert http.post(COMPLETIONS, json=completion()).status_code == 200
        server.check_idle()


def test_nor_one_that_breaks_its_iteration() -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        bad = server.tokenizer.encode("bad", add_special_tokens=False)

        def script(prompt: Sequence[int], so_far: Sequence[int], seed: int) -> int:
            if list(prompt) == bad:
                raise RuntimeError("out of luck")
            return END_ID

        server.play(script)
        for _ in range(10):
            assert http.post(COMPLETIONS, json=completion(prompt=bad)).status_code == 500
            assert http.get("/health").status_code == 200
        assert http.post(COMPLETIONS, json=completion()).status_code == 200
        server.check_idle()


def test_requests_that_wait_while_nothing_runs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that never admits anybody, by a fault of ours."""
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        with monkeypatch.context() as patch:
            patch.setattr(OnDemandAdmission, "fit", lambda *_: Fit.LATER)
            with ThreadPoolExecutor() as threads:
                waiting = threads.submit(http.post, COMPLETIONS, json=completion())
                wait_until(lambda: http.get("/health").status_code == 503)
                told = http.get("/health").json()
                assert told["status"] == "stalled"
                assert told["reason"].endswith("waiting requests: 1")
                patch.undo()
                assert waiting.result().status_code == 200
        assert http.get("/health").status_code == 200
        server.check_idle()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
