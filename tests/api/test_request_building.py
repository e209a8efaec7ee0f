from __future__ import annotations

import httpx
import pytest

from tests.api.running_server import END_ID, RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of


def test_one_engine_request_per_prompt_each_with_its_own_random_seed(server: RunningServer, http: httpx.Client) -> None:
    seeds = set()
    server.play(lambda prompt, so_far, seed: seeds.add(seed) or END_ID)  # type: ignore[func-returns-value]
    http.post(COMPLETIONS, json=completion(prompt=["a", "b", "c"]))
    assert len(seeds) == 3


@pytest.mark.parametrize(("seed", "n"), [(2**63 - 1, 1), (2**63 - 3, 3), (-(2**63), 5)])
def test_the_outermost_seeds(server: RunningServer, http: httpx.Client, seed: int, n: int) -> None:
    drawn = set()
    server.play(lambda prompt, so_far, seed: drawn.add(seed) or END_ID)  # type: ignore[func-returns-value]
    assert http.post(COMPLETIONS, json=completion(seed=seed, n=n)).status_code == 200
    assert drawn == set(range(seed, seed + n))
    assert max(drawn) < 2**63


@pytest.mark.parametrize("top_k", [10**4, 2**31, 2**63 - 1])
def test_a_top_k_of_all_tokens_is_none(server: RunningServer, http: httpx.Client, top_k: int) -> None:
    assert http.post(COMPLETIONS, json=completion(top_k=top_k)).status_code == 200
    assert server.executor.last_sampling.top_k == 0


def test_a_full_queue_is_refused_with_retry_after() -> None:
    scene = Scene()
    scheduler = type(scene.scheduler)(1, 512, 0.0, 2, 100_000)
    with running(Scene(scheduler=scheduler)) as server, httpx.Client(base_url=server.base_url) as http:
        server.executor.gate.clear()
        with http.stream("POST", COMPLETIONS, json=completion(prompt=["a", "b"], stream=True)):
            response = http.post(COMPLETIONS, json=completion(prompt=["a"] * 2))
        assert response.status_code == 503
        assert error_of(response)["code"] == "overloaded"
        assert int(response.headers["retry-after"]) >= 1
        server.executor.gate.set()
