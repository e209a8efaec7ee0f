"""vllm-router in front of two real replicas: who begins alike goes to one place, and nobody is lost at a drain."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from loadtest.routers import CACHE_AWARE, kv_aware, kv_event_flags, program, running_vllm_router
from loadtest.server_metrics import read_metrics
from loadtest.server_process import free_port
from tests.deploy.test_drain_behind_haproxy import FLAGS, calls, outcome
from tests.e2e.server_process import ServerProcess, write_dummy_folder

pytestmark = pytest.mark.skipif(program("vllm-router") is None, reason="vllm-router is not installed")

MODEL = "tiny/model"
KEY = "sk-of-a-client"
GROUPS, CALLS_OF_EACH = 4, 4
BLOCK = 16
SOUGHT, FOUND = "headrace_prefix_cache_queried_tokens_total", "headrace_prefix_cache_hit_tokens_total"
INSTRUCTIONS = (
    "Answer as whoever wrote the manual of this machine would, in one sentence, and say so if it is not known. "
)


@pytest.fixture(scope="module")
def endpoints() -> list[tuple[str, str]]:
    return [(f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}") for _ in range(2)]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, endpoints: list[tuple[str, str]]) -> Iterator[list[str]]:
    folder = write_dummy_folder(tmp_path_factory.mktemp("models") / "dummy")
    has_events = find_spec("zmq") and find_spec("msgpack")
    with ExitStack() as stack:
        started = []
        for events, replays in endpoints:
            told = kv_event_flags(events, replays) if has_events else ()
            server = ServerProcess(str(folder), *FLAGS, "--api-key", f"client:{KEY}", *told)
            started.append(stack.enter_context(server).url)
        yield started


def ask(url: str, group: str, number: int) -> None:
    """A prompt of the group; they begin alike for some hundred tokens of this model."""
    body = {"model": MODEL, "prompt": f"{group}: {INSTRUCTIONS}{number}?", "max_tokens": 2}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=30)
    assert answer.status_code == 200, answer.text


def tokens(replicas: list[str], name: str) -> list[float]:
    return [read_metrics(url)[name] for url in replicas]


def grown(replicas: list[str], url: str, name: str) -> tuple[float, float]:
    """Tokens sought and found by all replicas during the calls of groups of that name."""
    before = tokens(replicas, SOUGHT), tokens(replicas, FOUND)
    for number in range(CALLS_OF_EACH):
        for group in range(GROUPS):
            ask(url, f"{group} {name}", number)
    after = tokens(replicas, SOUGHT), tokens(replicas, FOUND)
    return sum(after[0]) - sum(before[0]), sum(after[1]) - sum(before[1])


def test_who_begins_alike_goes_where_the_beginning_is(replicas: list[str]):
    with running_vllm_router(replicas, CACHE_AWARE) as url:
        sought, found = grown(replicas, url, "alike")
    computed_once = 1 - 1 / CALLS_OF_EACH
    assert found / sought > 0.9 * computed_once, "a group's beginning is computed once, not by each replica"


@pytest.mark.skipif(find_spec("zmq") is None or find_spec("msgpack") is None, reason="the extra kv-events is not there")
def test_events_tell_a_router_what_it_has_not_sent_itself(replicas: list[str], endpoints: list[tuple[str, str]]):
    flags = kv_aware(MODEL, dict(zip(replicas, endpoints, strict=True)))
    with running_vllm_router(replicas, flags) as url:
        for number, replica in enumerate(replicas):
            ask(replica, f"{number} held", 0)
        time.sleep(1)  # events are on their way
        before = tokens(replicas, FOUND)
        for number, _ in enumerate(replicas):
            ask(url, f"{number} held", 1)
        found = [after - earlier for earlier, after in zip(before, tokens(replicas, FOUND), strict=True)]
        assert min(found) >= len(INSTRUCTIONS) - BLOCK, "each went to the replica that holds its beginning"
        sought, found_by_all = grown(replicas, url, "told")
    assert found_by_all / sought > 0.9 * (1 - 1 / CALLS_OF_EACH)


def test_no_call_is_lost_when_a_replica_is_told_to_end(tmp_path: Path):
    outcomes: list[str] = []
    over = threading.Event()
    folder = str(write_dummy_folder(tmp_path / "dummy"))

    def call_on(url: str, first: int) -> None:
        with httpx.Client(base_url=url, timeout=30) as http:
            kinds = calls(num_tokens=16)
            while not over.is_set():
                first += 1
                outcomes.append(outcome(http, kinds[first % len(kinds)]))
                time.sleep(0.05)

    with (
        ServerProcess(folder, *FLAGS) as staying,
        ServerProcess(folder, *FLAGS, "--shutdown-delay", "5") as leaving,
        running_vllm_router([leaving.url, staying.url], ("--policy=round_robin",)) as url,
    ):
        clients = [threading.Thread(target=call_on, args=(url, i), daemon=True) for i in range(4)]
        for client in clients:
            client.start()
        time.sleep(1)
        leaving.terminate()
        assert leaving.wait(30) == 0
        time.sleep(1)
        over.set()
        for client in clients:
            client.join()
    assert len(outcomes) > 50
    assert {*outcomes} == {"ok"}
