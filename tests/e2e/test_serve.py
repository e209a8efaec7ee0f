"""The process from outside: start, serve, refuse, lose clients, end in order."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file

from service.config import SchedulerConfig
from service.engine.engine_loop import EngineLoop
from service.main import _Service, serve
from service.settings.quickstart import QUICKSTART_MODEL
from service.settings.reader import read_settings
from tests.e2e.server_process import HAS_GPU, ServerProcess, write_dummy_folder
from tests.engine.harness import Harness

MODEL = "dummy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dummy_folder(tmp_path_factory.mktemp("model") / "dummy")


def start(folder: Path, *arguments: str, wait_until_ready: bool = True, executed: bool = False) -> ServerProcess:
    return ServerProcess(
        str(folder),
        "--load-format",
        "dummy",
        "--device",
        "cpu",  # where equal requests give equal answers, whatever they are batched with
        "--dtype",
        "float32",
        "--kv-cache-memory",
        "32MiB",
        "--served-model-name",
        MODEL,
        *arguments,
        wait_until_ready=wait_until_ready,
        executed=executed,
    )


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with start(folder, executed=True) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.wait_for_gauge("headrace_kv_blocks_used", 0)
    server.wait_for_gauge("headrace_requests_running", 0)


def test_start_up_says_what_is_served(server: ServerProcess):
    log = "".join(server.log)
    assert "load_format=dummy" in log
    assert "KV cache: " in log
    assert "sequences of the full context of 4096 tokens" in log
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert server.gauge("process_resident_memory_bytes") > 1e6


def test_completions_with_several_prompts_and_seeded_choices(client: openai.OpenAI):
    arguments = {"model": MODEL, "prompt": ["one", "two"], "n": 3, "seed": 7, "max_tokens": 8}
    first = client.completions.create(**arguments)
    again = client.completions.create(**arguments)
    assert [c.text for c in first.choices] == [c.text for c in again.choices]
    assert [c.index for c in first.choices] == list(range(6))
    assert len({c.text for c in first.choices}) > 3
    assert first.usage is not None
    assert first.usage.completion_tokens <= 48


def test_streamed_equals_unstreamed(client: openai.OpenAI):
    arguments = {"model": MODEL, "prompt": "some text", "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(**arguments).choices[0]
    chunks = list(client.completions.create(**arguments, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.text
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_overlapped_equals_plain_and_the_profile_comes_at_the_end(client: openai.OpenAI, folder: Path):
    def ask(asked: openai.OpenAI) -> list[str]:
        answer = asked.completions.create(
            model=MODEL, prompt=["some text", "other", "text"], max_tokens=30, temperature=0, n=2, logprobs=1
        )
        return [choice.text for choice in answer.choices]

    with start(folder, "--overlap", "--profile-host") as overlapped:
        with openai.OpenAI(base_url=f"{overlapped.url}/v1", api_key="none", max_retries=0) as other:
            assert ask(other) == ask(client)
        overlapped.terminate()
        assert overlapped.wait(30) == 0
    table = "".join(overlapped.log)
    assert "180 tokens generated" in table
    for part in ("engine_step", "forward (device)", "detokenization", "SSE"):
        assert part in table


def test_a_model_without_a_chat_template_refuses_chat_and_says_why(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="chat template"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_what_it_held(server: ServerProcess, client: openai.OpenAI, stream: bool):
    body = {"model": MODEL, "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.Client(timeout=0.3) as impatient,
        impatient.stream("POST", f"{server.url}/v1/completions", json=body) as response,
    ):
        for _ in response.iter_bytes():
            raise httpx.ReadTimeout("the client has lost interest")
    server.wait_for_gauge("headrace_kv_blocks_used", 0)


def read_stream(url: str, lines: list[str], max_tokens: int) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        lines.extend(line for line in response.iter_lines() if line)  # one by one, as they come


def wait_for_first(lines: list[str]) -> None:
    deadline_s = time.monotonic() + 10
    while not lines:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_sigterm_lets_running_requests_finish(folder: Path):
    with start(folder, "--log-load-every", "0.01") as server:
        lines: list[str] = []
        reader = threading.Thread(target=read_stream, args=(server.url, lines, 300))
        reader.start()
        wait_for_first(lines)
        assert server.wait_for_line("requests: 1 running, 0 waiting")
        server.terminate()
        assert server.wait(30) == 0
        reader.join(10)
        assert lines[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in lines[-2]
        assert "leaked" not in server.log[-1]  # libraries take for leaks what was never to be collected


def test_sigterm_refuses_new_requests_and_ends_late_ones_with_an_error_event(folder: Path):
    with start(folder, "--shutdown-timeout", "1") as server:
        lines: list[str] = []
        reader = threading.Thread(target=read_stream, args=(server.url, lines, 4000))
        reader.start()
        wait_for_first(lines)
        server.terminate()
        time.sleep(0.2)
        assert httpx.get(f"{server.url}/ready").status_code == 503
        refused = httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "x"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert server.wait(30) == 0
        reader.join(10)
        assert lines[-1] == "data: [DONE]"
        assert lines[-2].startswith('data: {"error":')


def test_a_second_sigterm_ends_at_once(folder: Path):
    with start(folder) as server:
        lines: list[str] = []
        reader = threading.Thread(target=read_stream, args=(server.url, lines, 4000))
        reader.start()
        wait_for_first(lines)
        server.terminate()
        time.sleep(0.2)
        server.terminate()
        started_s = time.monotonic()
        assert server.wait(15) == 0
        assert time.monotonic() - started_s < 5
        reader.join(10)
        assert lines[-1] == "data: [DONE]"


def test_sigterm_while_loading_ends_in_order(folder: Path):
    with start(folder, wait_until_ready=False) as server:
        server.wait_for_line("Application startup complete")
        server.terminate()
        assert server.wait(10) == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["./nowhere"], "neither a folder nor a hub id"),
        (["--device", "cuda"], "torch sees no CUDA device"),
        (["--block-size", "0"], "block-size"),
    ],
)
def test_a_start_that_cannot_work_says_why_and_fails(
    folder: Path, arguments: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
):
    if HAS_GPU:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = [] if arguments[0].startswith(".") else [str(folder), "--load-format", "dummy"]
    assert_start_fails([*model, *arguments], reason)


def test_a_model_that_could_answer_nothing_does_not_become_ready(tmp_path: Path):
    shutil.copytree(QUICKSTART_MODEL, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file({name: torch.full_like(weight, math.nan) for name, weight in load_file(file).items()}, file)
    reason = "model: its logits are not finite, so it cannot answer any request: NaN or infinity in "
    assert_start_fails([str(tmp_path / "model"), "--device", "cpu"], reason)


def assert_start_fails(arguments: list[str], reason: str) -> None:
    with ServerProcess(*arguments, wait_until_ready=False) as server:
        assert server.wait(60) != 0
    log = "".join(server.log)
    assert reason in log
    assert "Traceback" not in log
    assert "the HTTP server has stopped" not in log, "it was told to"


def test_the_engine_begins_once_garbage_is_collected(monkeypatch: pytest.MonkeyPatch):
    """Its first idle work captures CUDA graphs, into which no collection may come."""
    order: list[str] = []
    harness = Harness()
    parts = SimpleNamespace(
        loaded=SimpleNamespace(device="cpu", adapters=None),
        adapter_reader=None,
        scheduler=SchedulerConfig(2, 16, 0.0, 9, 99),
    )
    monkeypatch.setattr("service.main.load_model_parts", lambda *_: parts)
    monkeypatch.setattr("service.main.make_engine", lambda *_: (harness.engine, harness.blocks))
    monkeypatch.setattr("service.main.make_served_model", lambda *_: None)
    monkeypatch.setattr("service.main.settled", lambda is_gpu: nullcontext(order.append("collected")))
    monkeypatch.setattr(EngineLoop, "start", lambda _: order.append("begun"))

    async def load() -> None:
        await _Service(read_settings([]), None, ExitStack(), lambda: 0)._load()

    asyncio.run(load())
    assert order == ["collected", "begun"]


@pytest.mark.parametrize(("flags", "ended"), [((), []), (("--tensor-parallel-size", "2"), [0])])
def test_a_process_of_several_ranks_ends_without_taking_communicators_apart(
    flags: tuple[str, ...], ended: list[int], monkeypatch: pytest.MonkeyPatch
):
    """Their other ends are gone by then, and some are waited for."""
    exited: list[int] = []
    monkeypatch.setattr("service.main._run", lambda *_: 0)
    monkeypatch.setattr("service.main.end_at_signals", lambda status: None)
    monkeypatch.setattr("service.main.os._exit", exited.append)
    monkeypatch.setattr("service.main.threading.active_count", lambda: 1)
    assert serve(read_settings(list(flags))) == 0
    assert exited == ended
