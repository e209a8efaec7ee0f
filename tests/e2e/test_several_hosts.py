"""`--nnodes 2`, from outside: the stages of a model on two hosts, which are processes of this one, answer as one
process, and end together."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.distributed.test_rank_processes import comes_true, is_running
from tests.e2e.server_process import ServerProcess
from tests.e2e.short_quickstart import short_adapters, short_quickstart
from tests.e2e.test_fine_tuning import check_that_ranks_train_beside_requests
from tests.e2e.test_full_cache import FLAGS
from tests.e2e.test_hasty_threads import whole
from tests.e2e.test_tensor_parallel import GREEDY, LONG, PROMPTS, Answers, check_every_parameter, metrics
from tests.hosts.hosts import SECRET, free_port

ROOMY = "--dtype float32 --device cpu --kv-cache-memory 16MiB".split()
TWO_STAGES = (*FLAGS, "--kv-cache-memory", "188KiB")
LINK = "headrace0"


class Hosts(NamedTuple):
    head: ServerProcess
    other: ServerProcess


def two_hosts(
    at_end: ExitStack, *flags: str, address: str = "127.0.0.1", within: tuple[str, ...] = (), num_stages: int = 2
) -> Hosts:
    """The other one comes first, and waits. within: what the other one runs within."""
    hosts = f"--pipeline-parallel-size {num_stages} --nnodes 2 --master-addr {address} --master-port {free_port()}"
    shared = (*flags, *hosts.split(), "--node-secret", SECRET)
    other = ServerProcess(*shared, "--node-rank", "1", wait_until_ready=False, within=within, executed=True)
    at_end.enter_context(other)
    return Hosts(at_end.enter_context(ServerProcess(*shared)), other)


def roomy() -> tuple[str, ...]:
    return *short_quickstart(), *ROOMY, "--lora-dir", str(short_adapters())


def texts(server: ServerProcess) -> list[str]:
    """Greedy answers, to all prompts at once, of the model and of its adapter in turn."""
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(len(PROMPTS)) as pool:
        bodies = [{**GREEDY, "prompt": prompt, "max_tokens": 30} for prompt in PROMPTS]
        for body in bodies[::2]:
            body["model"] = "pirate"
        answers = pool.map(lambda body: whole(http, "/v1/completions", body), bodies)
        return [answer["choices"][0]["text"] for answer in answers]


def ranks_of(other: ServerProcess) -> list[int]:
    return [int(pid) for pid in re.findall(r"(\d+)", subprocess.getoutput(f"pgrep -P {other.process.pid}"))]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with ExitStack() as at_end:
        yield two_hosts(at_end, *roomy())


def test_two_hosts_answer_as_one_process(hosts: Hosts):
    with ServerProcess(*roomy()) as alone:
        assert texts(hosts.head) == texts(alone)
    told = metrics(hosts.head)
    assert told["headrace_ranks"] == 2
    assert told['headrace_rank_lora_adapters{rank="1"}'] == 1
    assert told['headrace_rank_control_messages_total{rank="1"}'] > told['headrace_iterations_total{launch="kernels"}']
    assert told['headrace_rank_kv_bytes{rank="1"}'] == told['headrace_rank_kv_bytes{rank="0"}'] > 0


def test_sigterm_to_the_head_lets_running_requests_finish_and_ends_the_other_host_and_its_ranks(hosts: Hosts):
    """The last one of these hosts."""
    answers = Answers(hosts.head, 2, {**LONG, "max_tokens": 100})
    hosts.head.wait_for_gauge("headrace_requests_running", 2)
    ranks = ranks_of(hosts.other)
    hosts.head.terminate()
    assert hosts.head.wait(30) == 0
    assert hosts.other.wait(10) == 0
    for lines in answers.lines():
        assert lines[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in lines[-2]
    assert ranks
    assert not any(map(is_running, ranks))
    assert "the head is shutting down" in "".join(hosts.other.log)


@pytest.mark.load
@pytest.mark.parametrize("flags", ["", "--tensor-parallel-size 2"])
def test_every_parameter_is_answered_as_by_one_process(flags: str):
    with ExitStack() as at_end:
        check_every_parameter(two_hosts(at_end, *short_quickstart(), *TWO_STAGES, *flags.split()).head)


@pytest.mark.load
def test_jobs_train_on_two_hosts(tmp_path: Path):
    """The other one has no data."""
    flags = "--dtype float32 --device cpu --kv-cache-memory 32MiB --enable-finetuning --data-dir".split()
    with ExitStack() as at_end:
        check_that_ranks_train_beside_requests(two_hosts(at_end, *flags, str(tmp_path)).head)


@pytest.mark.load
@pytest.mark.parametrize("who", ["head", "other"])
def test_a_killed_host_ends_the_service_on_the_other_one(who: str):
    with ExitStack() as at_end:
        hosts = two_hosts(at_end, *roomy())
        answers = Answers(hosts.head, 2, LONG) if who == "other" else None
        if answers:
            hosts.head.wait_for_gauge("headrace_requests_running", 2)
        ranks = ranks_of(hosts.other)
        killed, left = (hosts.head, hosts.other) if who == "head" else (hosts.other, hosts.head)
        killed.process.kill()
        assert left.wait(10) == 1
        assert ("the head has ended" if who == "head" else "host 1 (127.0.0.1) has ended") in "".join(left.log)
        for lines in answers.lines() if answers else ():
            assert [line for line in lines if "error" in line] == [lines[-2]]
        assert comes_true(lambda: not any(map(is_running, ranks)))


@pytest.fixture
def link() -> Iterator[tuple[str, ...]]:
    """A network of two hosts: this one is 10.77.0.1, and what runs within the returned command 10.77.0.2."""
    space = "headrace-test"
    commands = (
        f"ip netns add {space}",
        f"ip link add {LINK} type veth peer name {LINK}b netns {space}",
        f"ip addr add 10.77.0.1/24 dev {LINK}",
        f"ip link set {LINK} up",
        f"ip -n {space} addr add 10.77.0.2/24 dev {LINK}b",
        f"ip -n {space} link set {LINK}b up",
        f"ip -n {space} link set lo up",
    )
    try:
        for command in commands:
            if os.geteuid() or subprocess.run(command.split(), capture_output=True).returncode:
                pytest.skip(f"network namespaces cannot be made here: {command}")
        yield ("ip", "netns", "exec", space)
    finally:
        subprocess.run(["ip", "netns", "delete", space], capture_output=True)


@pytest.mark.load
def test_hosts_of_two_networks_answer_as_one_process_until_the_cable_is_pulled(link: tuple[str, ...]):
    """Then both end by themselves, each with what it knows."""
    with ExitStack() as at_end:
        hosts = two_hosts(at_end, *roomy(), address="10.77.0.1", within=link)
        with ServerProcess(*roomy()) as alone:
            assert texts(hosts.head) == texts(alone)
        ranks = ranks_of(hosts.other)
        subprocess.run(["ip", "link", "set", LINK, "down"], check=True)
        assert hosts.head.wait(12) == 1
        assert hosts.other.wait(12) == 1
        assert "nothing received from host 1 (10.77.0.2) for 5 s" in "".join(hosts.head.log)
        assert "nothing received from the head for 5 s" in "".join(hosts.other.log)
        assert comes_true(lambda: not any(map(is_running, ranks)))
