"""The service by Ray Serve, on a real cluster of two nodes that are processes of this machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

pytest.importorskip("ray.serve", reason="the extra ray is not installed")

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.schema import ServeDeploySchema

from loadtest.server_process import free_port
from service.errors import ConfigError
from service.ray_serve.application import build
from service.ray_serve.replica import load_of
from tests.deploy.deployment import DEPLOY, read_yaml
from tests.e2e.server_process import write_dummy_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own code

MODEL = "tiny/model"
FLAGS = f"--load-format dummy --device cpu --dtype float32 --kv-cache-memory 8MiB --served-model-name {MODEL}"
STEP_MS, SEQS, TOKENS = 200, 4, 20
FIXED = f"loadtest.host_server --step-ms {STEP_MS} --"
"""An engine whose iterations take so long, whatever is in them: then only the number of replicas counts."""

CHANGES_WITHIN_S = 120


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A Ray cluster of two nodes with room for one replica each, and Serve's HTTP on it."""
    port = free_port()
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_dummy_folder(tmp_path_factory.mktemp("models") / "dummy"))


def deploy(folder: str, **arguments: Any) -> None:
    """Returns when it runs; the flags of a test come after everybody's."""
    flags = f"{FLAGS} {arguments.pop('flags', '')}"
    given = {"model": folder, "max_replicas_per_node": 1, "flags": flags, **arguments}
    serve.run(build(given), route_prefix="/")


def servers() -> dict[int, Path]:
    """Our servers that run here: process id -> socket."""
    return {
        process: Path(words[words.index("--uds") + 1]) for process, words in _children_of_actors() if "--uds" in words
    }


def others() -> list[int]:
    """Process ids of hosts that only compute."""
    return [process for process, words in _children_of_actors() if "--node-rank" in words]


def _children_of_actors() -> Iterator[tuple[int, list[str]]]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "service.process.with_parent" in words and (process / "exe").exists():
            yield int(process.name), words


def metrics(socket: Path) -> str:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket))) as http:
        return http.get("http://localhost/metrics", timeout=30).text


def total(name: str) -> float:
    """Over all servers."""
    lines = [line for socket in servers().values() for line in metrics(socket).splitlines()]
    return sum(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def wait_for(what: Callable[[], bool], within_s: float = CHANGES_WITHIN_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)


def num_running() -> int:
    states = serve.status().applications["default"].deployments["replica"].replica_states
    return int(states.get("RUNNING", 0)) if set(states) <= {"RUNNING"} else -1


def complete(url: str, prompt: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, **fields}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=120)


def outcome(url: str, prompt: str, is_streamed: bool) -> str:
    """ok; told: a stream that ends with an error event; else what went wrong."""
    try:
        answer = complete(url, prompt, stream=is_streamed)
    except httpx.TransportError as fault:
        return repr(fault)
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.text[-200:]}"
    if not is_streamed:
        return "ok"
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text[-200:]
    return "told" if '"error"' in answer.text else "ok"


@pytest.fixture(scope="module")
def two(url: str, folder: str) -> str:
    """The real model, a replica on each node."""
    deploy(folder, min_replicas=2, max_replicas=2)
    assert len(servers()) == 2
    return url


def test_the_shipped_configuration_is_what_serve_and_the_application_take():
    shipped = read_yaml(DEPLOY / "ray" / "serve.yaml")
    (application,) = ServeDeploySchema.model_validate(shipped).applications
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    assert isinstance(build(application.args), serve.Application)
    with pytest.raises(ValidationError, match="is less than min_replicas"):
        build({"min_replicas": "3", "max_replicas": "2"})
    with pytest.raises(ConfigError, match="max-num-seqs"):
        build({"flags": "--max-num-seqs 0"})
    with pytest.raises(ConfigError, match=r"pipeline-parallel-size \(1\) must be a multiple of nnodes \(2\)"):
        build({"hosts": 2})
    with pytest.raises(ValidationError, match="max_replicas_per_node: not with several hosts"):
        build({"hosts": 2, "max_replicas_per_node": 1})


def test_streams_pass_through_piece_by_piece(two: str):
    body = {"model": MODEL, "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True, "seed": 1}
    with httpx.stream("POST", f"{two}/v1/completions", json=body, timeout=60) as answer:
        pieces = [*answer.iter_raw()]
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert len(answer.headers.get_list("x-request-id")) == 1
    assert len(pieces) > 5
    assert pieces[-1].endswith(b"data: [DONE]\n\n")
    assert complete(two, "x", model="none").status_code == 404, "what a server refuses, the client is told"
    assert httpx.get(f"{two}/v1/files").status_code == 404


def test_a_client_that_leaves_frees_what_it_held(two: str):
    generated = 'headrace_tokens_total{kind="generated"}'
    before = total(generated)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{two}/v1/completions", json=body, timeout=60) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        wait_for(lambda: total("headrace_requests_running") == 1, within_s=10)
    wait_for(lambda: total("headrace_requests_running") == 0, within_s=10)
    assert total(generated) - before < 3000, "it did not run to its end"


def test_who_begins_alike_goes_where_the_beginning_is(two: str):
    names = ("headrace_prefix_cache_queried_tokens_total", "headrace_prefix_cache_hit_tokens_total")
    before = [total(name) for name in names]
    groups, calls_of_each = 4, 4
    for number in range(calls_of_each):
        for group in range(groups):
            begins = f"{group} is the number of these instructions, which are long. " * 8
            assert complete(two, f"{begins}{number}?", max_tokens=2).status_code == 200
    sought, found = (total(name) - earlier for name, earlier in zip(names, before, strict=True))
    assert found / sought > 0.9 * (1 - 1 / calls_of_each), "a group's beginning is computed once, not by each replica"


def test_a_replica_that_is_killed_loses_no_more_than_it_held(two: str):
    outcomes: list[str] = []
    over = threading.Event()

    def call_on(number: int) -> None:
        while not over.is_set():
            outcomes.append(outcome(two, f"{number}", is_streamed=number % 2 == 0))

    clients = [threading.Thread(target=call_on, args=(i,), daemon=True) for i in range(6)]
    for client in clients:
        client.start()
    wait_for(lambda: len(outcomes) > 10)
    (killed, socket), _ = servers().items()
    held = load_of(metrics(socket), max_running=1)
    os.kill(_parent_of(killed), signal.SIGKILL)
    wait_for(lambda: killed not in servers(), within_s=10)
    num_before = len(outcomes)
    wait_for(lambda: len(outcomes) > num_before + 20)
    wait_for(lambda: num_running() == 2 and len(servers()) == 2)
    over.set()
    for client in clients:
        client.join()
    counted = Counter(outcomes)
    print(f"killed one of two: {dict(counted)}; it held {held}")
    assert counted.keys() <= {"ok", "told"}, "a whole answer is computed again, a stream is told"
    assert counted["told"] <= 3, "the streams that it held"


def _parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def calling(url: str, num_clients: int) -> Iterator[None]:
    """Clients that ask again as soon as they are answered; each answer is a whole one."""
    over = threading.Event()

    def call_on(number: int) -> None:
        while not over.is_set():
            assert complete(url, f"{number}").status_code == 200

    with ThreadPoolExecutor(num_clients) as clients:
        calls = [clients.submit(call_on, number) for number in range(num_clients)]
        try:
            yield
        finally:
            over.set()
        for call in calls:
            call.result()


def test_a_replica_on_two_nodes_answers_by_stages_and_a_lost_host_costs_that_replica_alone(url: str, folder: str):
    """An actor on the other node of its placement group; both come anew where one is lost, and none is left behind."""
    deploy(folder, hosts=2, max_replicas_per_node=None, max_replicas=1, flags="--pipeline-parallel-size 2")
    (head,) = servers()
    (other,) = others()
    assert _node_of(head) != _node_of(other)
    assert complete(url, "x").status_code == 200
    assert total("headrace_ranks") == 2
    os.kill(_parent_of(other), signal.SIGKILL)
    wait_for(lambda: head not in servers() and other not in others(), within_s=30)
    wait_for(lambda: num_running() == 1 and len(servers()) == len(others()) == 1)
    assert complete(url, "x").status_code == 200
    serve.delete("default")
    wait_for(lambda: not servers() and not others(), within_s=30)


def _node_of(process: int) -> str:
    """By the environment that Ray gives its workers: each node has a raylet of its own."""
    environment = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return next(each for each in environment if each.startswith("RAY_RAYLET_PID="))


def test_two_replicas_have_the_throughput_of_two(url: str, folder: str):
    """Tokens a second of an engine of fixed step time, while more clients call than there are seats."""
    flags = f"--max-num-seqs {SEQS} --max-num-batched-tokens 512"
    generated = 'headrace_tokens_total{kind="generated"}'
    rates = []
    for num_replicas in (1, 2):
        deploy(folder, min_replicas=num_replicas, max_replicas=num_replicas, run=FIXED, flags=flags)
        wait_for(lambda n=num_replicas: num_running() == n and len(servers()) == n)
        with calling(url, 6 * SEQS):
            time.sleep(TOKENS * STEP_MS / 1e3)
            before, began_s = total(generated), time.monotonic()
            time.sleep(5 * TOKENS * STEP_MS / 1e3)
            rates.append((total(generated) - before) / (time.monotonic() - began_s))
    print(f"tokens a second: one replica {rates[0]:.1f}, two {rates[1]:.1f}, {rates[1] / rates[0]:.2f} times")
    assert 0.8 < rates[0] / (SEQS / (STEP_MS / 1e3)) < 1.05, "the engine's own"
    assert rates[1] >= 1.9 * rates[0]


def test_replicas_come_with_waiting_requests_and_go_without(url: str, folder: str):
    flags = f"--max-num-seqs {SEQS} --max-num-batched-tokens 512"
    delays = {"upscale_delay_s": 1, "downscale_delay_s": 2, "look_back_period_s": 2, "waiting_per_replica": 8}
    deploy(folder, min_replicas=1, max_replicas=2, run=FIXED, flags=flags, **delays)
    wait_for(lambda: num_running() == 1)
    with ThreadPoolExecutor(3) as clients:
        with calling(url, 5 * SEQS):
            wait_for(lambda: num_running() == 2)
            long = [clients.submit(complete, url, f"{i}", max_tokens=5 * TOKENS, stream=True) for i in range(3)]
        wait_for(lambda: num_running() == 1)
        answers = [call.result().text for call in long]
    assert all(text.endswith("data: [DONE]\n\n") for text in answers)
    assert not any('"error"' in text for text in answers), "a replica that goes answers what it has"
