"""`--tensor-parallel-size 2` on a CPU, from outside: two processes answer as one does, and end together."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch

from tests.distributed.test_rank_processes import comes_true, is_running, stop
from tests.e2e.server_process import ServerProcess
from tests.e2e.short_quickstart import short_quickstart
from tests.e2e.test_full_cache import CALLS, FLAGS, NUM_CLIENTS, answers_of_one_process
from tests.e2e.test_hasty_threads import events, said, whole

TWO_RANKS = (*FLAGS, "--kv-cache-memory", "188KiB", "--tensor-parallel-size", "2")
"""As many blocks as one rank has with FLAGS, each of half the size."""

ROOMY = "--dtype float32 --device cpu --kv-cache-memory 16MiB --tensor-parallel-size 2".split()

LONG = {"model": "headrace-quickstart", "prompt": "x", "max_tokens": 1500, "ignore_eos": True}
LOST_WITHIN_S = 10.0

GREEDY = {"model": "headrace-quickstart", "temperature": 0, "max_tokens": 100, "ignore_eos": True}
PROMPTS = ["Headrace is", "What is PagedAttention?", "def main():", "One two three four", "x"]


def others(server: ServerProcess) -> list[int]:
    """Process ids of the ranks that are not the server's own."""
    (line,) = (line for line in server.log if re.search(r"rank 0 of \d is this process", line))
    return [int(pid) for pid in re.findall(r"\d+", line.split("the others are")[1])]


def metrics(server: ServerProcess) -> Counter[str]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return Counter({line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")})


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(*short_quickstart(), *TWO_RANKS, executed=True) as server:
        yield server


def check_every_parameter(server: ServerProcess) -> None:
    """All calls at once get what one process gives each alone."""
    expected = answers_of_one_process()
    order = list(range(len(CALLS)))
    random.Random(0).shuffle(order)

    def ask(number: int) -> None:
        path, body = CALLS[number]
        if number % 2:
            choices = [choice for event in events(http, path, body) for choice in event["choices"]]
        else:
            choices = whole(http, path, body)["choices"]
        assert said(choices) == expected[number], body

    with httpx.Client(base_url=server.url, timeout=120) as http, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        list(pool.map(ask, order))


def test_every_parameter_gets_the_tokens_that_one_process_gives_in_a_cache_that_is_too_small(server: ServerProcess):
    """Chat and completions, streams, n, beams, grammars, logprobs, penalties, the prefix cache, prompts in chunks and
    preemption by swapping, each beside all others: as one process answers each alone, in fp32."""
    check_every_parameter(server)
    told = metrics(server)
    assert all(told[f'headrace_preemptions_total{{kind="{kind}"}}'] > 0 for kind in ("recompute", "swap"))
    assert told["headrace_prefix_cache_hit_tokens_total"] > 0
    assert told["headrace_ranks"] == 2
    assert told['headrace_rank_control_messages_total{rank="1"}'] > told['headrace_iterations_total{launch="kernels"}']
    assert told['headrace_rank_kv_bytes{rank="0"}'] == told['headrace_rank_kv_bytes{rank="1"}'] > 0
    assert told['headrace_rank_exchanges_total{rank="0"}'] > told['headrace_iterations_total{launch="kernels"}']
    assert all(told[f'headrace_rank_exchange_seconds_total{{rank="{rank}"}}'] > 0 for rank in (0, 1))
    server.wait_for_gauge("headrace_kv_blocks_used", 0)


def test_a_client_that_leaves_frees_what_it_held(server: ServerProcess):
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}, timeout=1.0) as response,
    ):
        for _ in response.iter_bytes():
            raise httpx.ReadTimeout("the client has lost interest")
    server.wait_for_gauge("headrace_kv_blocks_used", 0)


def test_sigterm_lets_the_running_request_finish_and_ends_every_rank(server: ServerProcess):
    """The last one of this server. A terminal sends the signal to each process, which is no reason for the others."""
    answers = Answers(server, 1, {**LONG, "max_tokens": 100})
    server.wait_for_gauge("headrace_requests_running", 1)
    for pid in others(server):
        os.kill(pid, signal.SIGTERM)
    server.terminate()
    assert server.wait(30) == 0
    (lines,) = answers.lines()
    assert lines[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in lines[-2]
    assert not any(map(is_running, others(server)))


class Answers:
    """What streams got, line by line, until they ended: `num` of them, in threads."""

    def __init__(self, server: ServerProcess, num: int, body: Mapping[str, object]) -> None:
        self._lines: list[list[str]] = [[] for _ in range(num)]
        self._threads = [
            threading.Thread(target=self._read, args=(f"{server.url}/v1/completions", {**body, "stream": True}, lines))
            for lines in self._lines
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, url: str, body: dict[str, object], lines: list[str]) -> None:
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            for line in response.iter_lines():
                if line:
                    lines.append(line)

    def lines(self) -> list[list[str]]:
        """Once all have ended."""
        for thread in self._threads:
            thread.join(60)
        return self._lines


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_lost_rank_ends_each_request_in_one_error_and_the_process_with_status_1_in_time(how: str):
    check_loss(how, ROOMY)


def check_loss(
    how: str,
    arguments: Sequence[str],
    before: Callable[[ServerProcess], None] = lambda server: None,
    body: Mapping[str, object] = LONG,
) -> None:
    """Of rank 1, while requests run. before: looked at first."""
    with ServerProcess(*arguments) as server:
        before(server)
        (other,) = others(server)
        answers = Answers(server, 4, body)
        server.wait_for_gauge("headrace_requests_running", 4)
        lost_s = time.monotonic()
        if how == "killed":
            os.kill(other, signal.SIGKILL)
        else:
            stop(other)
        unhealthy = comes_true(lambda: not is_healthy(server), LOST_WITHIN_S)
        assert server.wait(30) == 1
        assert time.monotonic() - lost_s < LOST_WITHIN_S
        assert unhealthy
        for lines in answers.lines():
            assert [line for line in lines if "error" in line] == [lines[-2]]
            assert lines[-1] == "data: [DONE]"
        assert not is_running(other)
    told = {"killed": "rank 1 has ended, killed by SIGKILL", "stopped": "rank 1 has sent no heartbeat"}
    assert told[how] in "".join(server.log)


def is_healthy(server: ServerProcess) -> bool:
    try:
        return httpx.get(f"{server.url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:  # it has ended
        return False


def test_no_rank_is_left_where_the_first_is_killed_while_all_load():
    with ServerProcess(*short_quickstart(), *TWO_RANKS, wait_until_ready=False) as server:
        server.wait_for_line("rank 0 of 2 is this process")
        (other,) = others(server)
        assert is_running(other)
        server.process.kill()
        assert comes_true(lambda: not is_running(other), LOST_WITHIN_S)


def test_what_cannot_be_is_refused_before_anything_is_loaded():
    with ServerProcess("--device", "cpu", "--tensor-parallel-size", "3", wait_until_ready=False) as server:
        assert server.wait(60) in (1, 2)
    assert "tensor-parallel-size: 3 does not divide the model's" in "".join(server.log)
    assert "rank 0 of" not in "".join(server.log)


@pytest.mark.load
@pytest.mark.parametrize("option", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_ranks_of_transformers_modules_say_what_the_native_file_says(option: str):
    said: list[list[str]] = []
    for how in ((), ("--model-impl", "transformers", option, "2")):
        cpu = ("--device", "cpu", "--dtype", "float32", "--kv-cache-memory", "16MiB")
        with ServerProcess(*cpu, *how) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            greedy = [whole(http, "/v1/completions", {**GREEDY, "prompt": text}) for text in PROMPTS]
            said.append([answer["choices"][0]["text"] for answer in greedy])
    assert said[0] == said[1]


def needs_gpus(count: int) -> pytest.MarkDecorator:
    return pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"{count} GPUs")


TWO_GPUS = [pytest.mark.gpu, needs_gpus(2)]
RANKS = [
    pytest.param("--device cpu", id="one rank"),
    pytest.param("--device cpu --tensor-parallel-size 2", id="two ranks"),
    pytest.param("--tensor-parallel-size 2", marks=TWO_GPUS, id="two GPUs"),
    pytest.param("--pipeline-parallel-size 2", marks=TWO_GPUS, id="two GPUs, stages"),
]
"""Options for what is served alike by one process, by ranks and by stages."""


def check_several_gpus(several: str) -> None:
    """Without these flags and with them: every parameter is answered, greedy text is equal, SIGTERM ends all."""
    flags = "--dtype float32 --scheduling-policy priority --kv-cache-memory 64MiB --max-num-seqs 16".split()
    flags += ["--max-num-batched-tokens", "40"]
    said_by: list[list[object]] = []
    for ranks in ("", several):
        with (
            ServerProcess(*flags, *ranks.split()) as server,
            httpx.Client(base_url=server.url, timeout=120) as http,
            ThreadPoolExecutor(NUM_CLIENTS) as pool,
        ):
            answers = list(pool.map(lambda call, http=http: said(whole(http, *call)["choices"]), CALLS))
            greedy = [whole(http, "/v1/completions", {**GREEDY, "prompt": text}) for text in PROMPTS]
            said_by.append([answer["choices"][0]["text"] for answer in greedy])
            assert all(answers)
            server.terminate()
            assert server.wait(30) == 0
    assert said_by[0] == said_by[1]


@pytest.mark.gpu
@needs_gpus(2)
@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("option", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_a_lost_gpu_ends_each_request_in_one_error_and_the_process_with_status_1_in_time(option: str, how: str):
    """The other rank's kernels, or NCCL's, wait for it for ever."""
    served = "loadtest/shapes/llama-8b --load-format dummy --served-model-name headrace-quickstart".split()
    check_loss(how, [*served, "--kv-cache-memory", "4GiB", option, "2"], body={**LONG, "prompt": [7]})


@pytest.mark.gpu
@pytest.mark.parametrize(
    "flags", [pytest.param(f"--tensor-parallel-size {count}", marks=needs_gpus(count)) for count in (2, 4)]
)
def test_several_gpus_answer_as_one_does(flags: str):
    """In fp32, by NCCL or over symmetric memory, in CUDA graphs."""
    check_several_gpus(flags)


@pytest.mark.load
def test_four_ranks_answer_as_one_process():
    """As many as the model has key-value heads."""
    with ServerProcess(*short_quickstart(), *FLAGS, "--tensor-parallel-size", "4") as server:
        check_every_parameter(server)
