"""`--pipeline-parallel-size` on a CPU, from outside: stages in several processes answer as one, and end together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.distributed.test_rank_processes import is_running
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_full_cache import FLAGS
from tests.e2e.test_tensor_parallel import LONG, Answers, check_every_parameter, check_loss, metrics, others

TWO_STAGES = (*FLAGS, "--kv-cache-memory", "564KiB", "--pipeline-parallel-size", "2")
"""As many blocks as one process has with FLAGS, each of half the layers."""

ROOMY = "--dtype float32 --device cpu --kv-cache-memory 16MiB --pipeline-parallel-size 2".split()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(*TWO_STAGES) as server:
        yield server


def test_every_parameter_gets_the_tokens_that_one_process_gives_in_a_cache_that_is_too_small(server: ServerProcess):
    """Chat and completions, streams, n, beams, grammars, logprobs, penalties, the prefix cache, prompts in chunks and
    preemption by swapping, each beside all others, two batches in flight: as one process answers each alone, in
    fp32."""
    check_every_parameter(server)
    told = metrics(server)
    assert all(told[f'headrace_preemptions_total{{kind="{kind}"}}'] > 0 for kind in ("recompute", "swap"))
    assert told["headrace_prefix_cache_hit_tokens_total"] > 0
    assert told["headrace_ranks"] == 2
    lifetime_s = time.time() - told["process_start_time_seconds"]
    assert all(0 < told[f'headrace_stage_compute_seconds_total{{stage="{n}"}}'] < lifetime_s for n in (0, 1))
    server.wait_for_gauge("headrace_kv_blocks_used", 0)


def test_sigterm_lets_the_running_requests_finish_and_ends_every_stage(server: ServerProcess):
    """The last one of this server. A terminal sends the signal to each process, which is no reason for the others."""
    answers = Answers(server, 2, {**LONG, "max_tokens": 100})
    server.wait_for_gauge("headrace_requests_running", 2)
    for pid in others(server):
        os.kill(pid, signal.SIGTERM)
    server.terminate()
    assert server.wait(30) == 0
    for lines in answers.lines():
        assert lines[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in lines[-2]
    assert not any(map(is_running, others(server)))


@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.load), "stopped"])
def test_a_lost_stage_ends_each_request_in_one_error_and_the_process_with_status_1_in_time(how: str):
    """A killed one is found out as a killed rank is (test_tensor_parallel.py)."""
    check_loss(how, ROOMY)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("4",), "pipeline-parallel-size: 4 does not divide the model's 6 layers"),
        (("2", "--lora-dir", "."), "pipeline-parallel-size 2: lora-modules, lora-dir"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(arguments: tuple[str, ...], words: str):
    with ServerProcess("--device", "cpu", "--pipeline-parallel-size", *arguments, wait_until_ready=False) as server:
        assert server.wait(60) in (1, 2)
    assert words in "".join(server.log)
    assert "rank 0 of" not in "".join(server.log)


@pytest.mark.load
@pytest.mark.parametrize("flags", ["--pipeline-parallel-size 3", "--tensor-parallel-size 2 --pipeline-parallel-size 2"])
def test_more_stages_and_stages_of_several_ranks_answer_as_one_process(flags: str):
    with ServerProcess(*FLAGS, *flags.split()) as server:
        check_every_parameter(server)
