from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import httpx
import pytest

from service.api.serving_state import GenerationDefaults
from service.config import ApiConfig
from service.core.request import Request
from tests.api.running_server import END_ID, MODEL, RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of


def test_one_engine_request_per_prompt_each_with_its_own_random_seed(server: RunningServer, http: httpx.Client) -> None:
    seeds = set()
    server.play(lambda prompt, so_far, seed: seeds.add(seed) or END_ID)
    http.post(COMPLETIONS, json=completion(prompt=["a", "b", "c"]))
    assert len(seeds) == 3


@pytest.mark.parametrize(("seed", "n"), [(2**63 - 1, 1), (2**63 - 3, 3), (-(2**63), 5)])
def test_the_outermost_seeds(server: RunningServer, http: httpx.Client, seed: int, n: int) -> None:
    drawn = set()
    server.play(lambda prompt, so_far, seed: drawn.add(seed) or END_ID)
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


def test_a_request_that_waits_too_long_is_refused_with_retry_after() -> None:
    scheduler = replace(Scene().scheduler, max_num_seqs=1, max_waiting_s=0.1)
    with running(Scene(scheduler=scheduler)) as server, httpx.Client(base_url=server.base_url) as http:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.005
        with http.stream("POST", COMPLETIONS, json=completion(stream=True, max_tokens=2000)):
            response = http.post(COMPLETIONS, json=completion())
            lines = http.post(COMPLETIONS, json=completion(stream=True)).text.split("\n\n")
        assert (response.status_code, error_of(response)["code"]) == (503, "overloaded")
        assert int(response.headers["retry-after"]) >= 1
        assert '"code":"overloaded"' in lines[-3]
        assert lines[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("header", ["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"])
def test_a_request_that_cannot_start_by_its_gateways_objective_is_refused_for_another_replica(header: str) -> None:
    scheduler = replace(Scene().scheduler, max_num_seqs=1)
    with running(Scene(scheduler=scheduler)) as server, httpx.Client(base_url=server.base_url) as http:
        assert http.post(COMPLETIONS, json=completion(), headers={header: "60000"}).status_code == 200
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.005
        with http.stream("POST", COMPLETIONS, json=completion(stream=True, max_tokens=2000)):
            response = http.post(COMPLETIONS, json=completion(), headers={header: "100"})
        assert (response.status_code, error_of(response)["code"]) == (503, "overloaded")
        assert "0.1 s" in error_of(response)["message"]
        assert int(response.headers["retry-after"]) >= 1
        server.check_idle()


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "1e3", "nan", "9" * 10])
def test_an_objective_that_is_no_time_is_refused_by_its_name(wrong: str) -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        response = http.post(COMPLETIONS, json=completion(), headers={"x-llm-d-slo-ttft-ms": wrong})
        assert response.status_code == 400
        assert "x-llm-d-slo-ttft-ms" in error_of(response)["message"]


def test_a_request_carries_its_owner_priority_and_salt() -> None:
    config = ApiConfig(served_model_names=(MODEL,), api_keys=("sk-1", "sk-2"))
    heeding = Scene(config=config, defaults=GenerationDefaults(heeds_priority=True))
    with running(heeding) as server, httpx.Client(base_url=server.base_url) as http:
        seen: list[Request] = []
        submit = server.engine.submit
        server.engine.submit = lambda request: (seen.append(request), submit(request))[1]
        bodies = [
            completion(priority=7, cache_salt="a", service_tier="flex"),
            completion(service_tier="flex"),
            completion(service_tier="priority"),
            completion(service_tier="default"),
        ]
        for body in bodies:
            for key in config.api_keys:
                response = http.post(COMPLETIONS, json=body, headers={"Authorization": f"Bearer {key}"})
                assert response.json()["service_tier"] == body["service_tier"]
        assert [request.priority for request in seen] == [7, 7, -1, -1, 1, 1, 0, 0]
        salts = [request.cache_salt for request in seen]
        assert salts[2:] == salts[2:4] * 3
        assert len(set(salts)) == 4, "two keys, each with a salt and without"
        assert len({request.client for request in seen}) == 2
        assert not any("sk-" in request.client for request in seen)
        too_high = http.post(COMPLETIONS, json=completion(priority=10**7), headers={"Authorization": "Bearer sk-1"})
        assert error_of(too_high)["param"] == "priority"


@pytest.mark.parametrize(("lower_first", "seen_as"), [(False, [3, -3, -1]), (True, [-3, 3, -1])])
def test_the_priority_that_goes_first_is_the_higher_one_or_as_at_vllm_the_lower(
    lower_first: bool, seen_as: list[int]
) -> None:
    """A tier means the same either way."""
    defaults = GenerationDefaults(heeds_priority=True, lower_priority_first=lower_first)
    with running(Scene(defaults=defaults)) as server, httpx.Client(base_url=server.base_url) as http:
        seen: list[Request] = []
        submit = server.engine.submit
        server.engine.submit = lambda request: (seen.append(request), submit(request))[1]
        for fields in ({"priority": 3}, {"priority": -3}, {"service_tier": "flex"}):
            assert http.post(COMPLETIONS, json=completion(**fields)).status_code == 200
        assert [request.priority for request in seen] == seen_as


NAMED_KEYS = ("alice:sk-a", "alice:sk-b", "bob:sk-c", "sk-d", "sk-e")
PROMPT = "What may one client learn of another one's prompts? " * 4


@contextmanager
def cached_tokens_by_key(
    scope: Literal["key", "all"], api_keys: tuple[str, ...] = NAMED_KEYS, num_blocks: int = 4096
) -> Iterator[tuple[RunningServer, Callable[..., int]]]:
    """A server with a prefix cache, and what a call to it with a key was told of cached tokens."""
    config = ApiConfig(served_model_names=(MODEL,), api_keys=api_keys, prefix_cache_scope=scope)
    scene = Scene(config=config, num_blocks=num_blocks, finds_prefixes=True)
    with running(scene) as server, httpx.Client(base_url=server.base_url, timeout=30) as http:

        def cached(key: str = "", **fields: object) -> int:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            response = http.post(COMPLETIONS, json=completion(prompt=PROMPT, **fields), headers=headers)
            assert response.status_code == 200, response.text
            return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        yield server, cached


def test_a_key_finds_no_prefix_that_another_key_has_brought() -> None:
    """By default: else who sends a prompt learns whether somebody else has sent it. Keys of one name are one client."""
    with cached_tokens_by_key("key") as (_, cached):
        assert cached("sk-a") == 0
        assert cached("sk-a") == cached("sk-b") > 0
        for stranger in ("sk-c", "sk-d", "sk-e"):
            assert cached(stranger) == 0
            assert cached(stranger) > 0
        assert cached("sk-a", cache_salt="user 1") == cached("sk-c", cache_salt="user 1") == 0
        assert cached("sk-a", cache_salt="user 1") > 0
        assert cached("sk-a", cache_salt="user 2") == 0, "the client's own salt separates within its key"


def test_no_name_and_salt_look_like_another_name_and_salt() -> None:
    with cached_tokens_by_key("key", ("a:sk-1", "ab:sk-2", "1:a:sk-3", ":sk-4")) as (_, cached):
        pairs = [("sk-1", "b"), ("sk-2", ""), ("sk-2", "1:a"), ("sk-3", "b"), ("sk-1", "1:ab"), ("sk-4", "1:a")]
        for key, salt in pairs:
            assert cached(key, **({"cache_salt": salt} if salt else {})) == 0


def test_keys_may_share_prefixes_if_the_operator_says_so() -> None:
    with cached_tokens_by_key("all") as (_, cached):
        assert cached("sk-a") == 0
        assert cached("sk-c") == cached("sk-d") > 0
        assert cached("sk-d", cache_salt="user 1") == 0


@pytest.mark.parametrize("api_keys", [(), ("sk-only",)])
def test_with_one_client_all_share(api_keys: tuple[str, ...]) -> None:
    with cached_tokens_by_key("key", api_keys) as (_, cached):
        assert cached(*api_keys) == 0
        assert cached(*api_keys) > 0


def test_nor_does_it_when_they_are_preempted() -> None:
    keys = tuple(f"sk-{number}" for number in range(6))
    with cached_tokens_by_key("key", keys, num_blocks=200) as (server, cached):
        server.play(lambda prompt, so_far, seed: 75)
        with ThreadPoolExecutor(len(keys)) as threads:
            told = list(threads.map(lambda key: cached(key, max_tokens=300), keys))
        assert server.metric("headrace_preemptions_total", kind="recompute") > 0
        assert told == [0] * len(keys)
