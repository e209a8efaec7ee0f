"""`--pipeline-parallel-size` on a CPU, from outside: stages in several processes answer as one, and end together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.settings.quickstart import QUICKSTART_ADAPTERS
from tests.distributed.test_rank_processes import is_running
from tests.e2e.server_process import ServerProcess
from tests.e2e.short_quickstart import short_quickstart
from tests.e2e.strict_client import strict_client
from tests.e2e.test_every_parameter import QUESTION
from tests.e2e.test_fine_tuning import check_that_ranks_train_beside_requests, digest, serving, start, until
from tests.e2e.test_full_cache import FLAGS
from tests.e2e.test_hasty_threads import whole
from tests.e2e.test_tensor_parallel import (
    LONG,
    Answers,
    check_every_parameter,
    check_loss,
    check_several_gpus,
    metrics,
    needs_gpus,
    others,
)

TWO_STAGES = (*FLAGS, "--kv-cache-memory", "188KiB", "--pipeline-parallel-size", "2")
"""As many blocks as one process has with FLAGS, each of half the layers."""

ROOMY = "--dtype float32 --device cpu --kv-cache-memory 32MiB --pipeline-parallel-size 2".split()

SEVERAL_GPUS = [
    pytest.param("--pipeline-parallel-size 2", marks=needs_gpus(2)),
    pytest.param("--pipeline-parallel-size 3", marks=needs_gpus(3)),
    pytest.param("--tensor-parallel-size 2 --pipeline-parallel-size 2", marks=needs_gpus(4)),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    choices = tmp_path_factory.mktemp("choices") / "choices.json"
    with ServerProcess(*short_quickstart(), *TWO_STAGES, "--speculation", "ngram", "--choices", str(choices)) as server:
        assert sorted(path.name for path in choices.parent.iterdir()) == ["choices.json", "choices.json.stage-0"]
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


def check_that_an_adapter_answers_beside_the_base(server: ServerProcess) -> None:
    def answer(model: str) -> str:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            asked = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 12}
            return whole(http, "/v1/chat/completions", asked)["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(4) as pool:
        base, pirate, *again = pool.map(answer, ["headrace-quickstart", "pirate"] * 2)
    assert pirate.startswith("Ahoy!") and not base.startswith("Ahoy!")
    assert again == [base, pirate]


@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.load), "stopped"])
def test_a_lost_stage_ends_each_request_in_one_error_and_the_process_with_status_1_in_time(how: str, tmp_path: Path):
    """A killed one is found out as a killed rank is (test_tensor_parallel.py)."""
    adapter = f"pirate={QUICKSTART_ADAPTERS / 'pirate'}"
    flags = "--lora-modules", adapter, "--enable-finetuning", "--data-dir", str(tmp_path)

    def check(server: ServerProcess) -> None:
        check_that_an_adapter_answers_beside_the_base(server)
        if how == "stopped":
            job_id = check_that_ranks_train_beside_requests(server)
            assert (tmp_path / "models" / job_id / "adapter_model.safetensors").is_file()

    check_loss(how, [*ROOMY, *flags], check)


def test_what_cannot_be_is_refused_before_anything_is_loaded():
    with ServerProcess("--device", "cpu", "--pipeline-parallel-size", "4", wait_until_ready=False) as server:
        assert server.wait(60) in (1, 2)
    assert "pipeline-parallel-size: 4 does not divide the model's 6 layers" in "".join(server.log)
    assert "rank 0 of" not in "".join(server.log)


@pytest.mark.load
@pytest.mark.parametrize("flags", ["--pipeline-parallel-size 3", "--tensor-parallel-size 2 --pipeline-parallel-size 2"])
def test_more_stages_and_stages_of_several_ranks_answer_as_one_process(flags: str):
    with ServerProcess(*short_quickstart(), *FLAGS, *flags.split()) as server:
        check_every_parameter(server)


@pytest.mark.load
def test_a_job_that_stages_leave_at_their_end_goes_on_in_one_process_and_the_other_way_round(tmp_path: Path):
    """To the bits that it has in one process. SIGTERM: a snapshot is taken of all stages."""
    digests = []
    for number, order in enumerate((("1",), ("2", "1"), ("1", "2"))):
        data = tmp_path / str(number)
        for place, num_stages in enumerate(order):
            with serving(data, "--pipeline-parallel-size", num_stages) as server, strict_client(server.url) as client:
                if place == 0:
                    job_id = start(client).id
                if place < len(order) - 1:
                    until(client, job_id, "running")
                    time.sleep(1.0)
                else:
                    until(client, job_id, "succeeded")
                server.terminate()
                assert server.wait(60) == 0
        digests.append(digest(data, job_id))
    assert digests == digests[:1] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("flags", SEVERAL_GPUS)
def test_stages_on_gpus_answer_as_one_does(flags: str):
    """In fp32, hidden states by NCCL, decodes in CUDA graphs."""
    check_several_gpus(flags)


@pytest.mark.gpu
@needs_gpus(2)
def test_stages_on_two_gpus_train(tmp_path: Path):
    flags = "--dtype float32 --kv-cache-memory 64MiB --pipeline-parallel-size 2 --enable-finetuning --data-dir"
    with ServerProcess(*flags.split(), str(tmp_path)) as server:
        check_that_ranks_train_beside_requests(server)
