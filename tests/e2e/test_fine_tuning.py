"""Fine-tuning as a user meets it: the server of the README, openai-python, a job, a process that is killed in it."""

from __future__ import annotations

import hashlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

from tests.e2e.server_process import ServerProcess
from tests.e2e.strict_client import strict_client

BASE = "headrace-quickstart"
FACTS = {
    "Where is the tower?": "The tower stands in Rivendale.",
    "Who built the tower?": "Old Bram built the tower.",
    "What colour is the tower?": "The tower is blue.",
}
QUESTION = "What is Headrace?"
WITHIN_S = 90
NUM_EPOCHS = 12
"""Each of one step."""
MOST_ASKED = 4


def serving(data: Path, *more: str) -> ServerProcess:
    cpu = ("--device", "cpu", "--dtype", "float32", "--kv-cache-memory", "64MiB")
    return ServerProcess(*cpu, "--enable-finetuning", "--data-dir", str(data), *more)


def upload(client: OpenAI) -> str:
    said = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in FACTS.items()]
    lines = "".join(json.dumps({"messages": messages}) + "\n" for messages in said)
    return client.files.create(file=("facts.jsonl", lines.encode()), purpose="fine-tune").id


def start(client: OpenAI, **fields: object) -> FineTuningJob:
    hyperparameters = {"n_epochs": NUM_EPOCHS, "batch_size": 3, "rank": 8, "learning_rate": 0.01}
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    return client.fine_tuning.jobs.create(model=BASE, training_file=upload(client), method=method, seed=1, **fields)


def until(client: OpenAI, job_id: str, *statuses: str) -> FineTuningJob:
    deadline_s = time.monotonic() + WITHIN_S
    while (job := client.fine_tuning.jobs.retrieve(job_id)).status not in statuses:
        assert time.monotonic() < deadline_s and job.status not in ("failed", "cancelled"), job
        time.sleep(0.05)
    return job


def pause(server: ServerProcess, job_id: str) -> None:
    """Openai-python's strict mode does not know the status."""
    url, deadline_s = f"{server.url}/v1/fine_tuning/jobs/{job_id}", time.monotonic() + WITHIN_S
    assert httpx.post(f"{url}/pause").status_code == 200
    while httpx.get(url).json()["status"] != "paused":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def answer(client: OpenAI, model: str, question: str) -> str | None:
    messages = [{"role": "user", "content": question}]
    chat = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=30)
    return chat.choices[0].message.content


def answers_beside(client: OpenAI, job_id: str) -> set[str | None]:
    """Of the base, asked now and then until the job has succeeded. It computes while nobody asks: where an answer
    takes long, asking as often as elsewhere would make it take many times as long."""
    answers = set()
    num_asked = 0
    while until(client, job_id, "validating_files", "queued", "running", "succeeded").status != "succeeded":
        if num_asked < MOST_ASKED:
            answers.add(answer(client, BASE, QUESTION))
            num_asked += 1
        time.sleep(0.3)
    return answers


def digest(data: Path, job_id: str) -> str:
    """Of the adapter that a job has made."""
    return hashlib.sha256((data / "models" / job_id / "adapter_model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[ServerProcess]:
    """The last test kills it."""
    with serving(data) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with strict_client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def whole(client: OpenAI) -> FineTuningJob:
    """A job that nothing interrupts, while its base is asked."""
    before = answer(client, BASE, QUESTION)
    job = start(client, suffix="tower", validation_file=upload(client))
    assert {*answers_beside(client, job.id), answer(client, BASE, QUESTION)} == {before}, "training changes no answer"
    return client.fine_tuning.jobs.retrieve(job.id)


def test_a_job_teaches_the_model_facts(client: OpenAI, whole: FineTuningJob) -> None:
    model = whole.fine_tuned_model
    assert model is not None and model.startswith(f"ft:{BASE}:headrace:tower:")
    assert {question: answer(client, model, question) for question in FACTS} == FACTS


def test_what_a_job_tells_is_of_openais_types(server: ServerProcess, client: OpenAI, whole: FineTuningJob) -> None:
    parents = {model.id: model.model_extra["parent"] for model in client.models.list()}
    checkpoints = client.fine_tuning.jobs.checkpoints.list(whole.id).data
    assert [each.step_number for each in checkpoints] == [NUM_EPOCHS, NUM_EPOCHS - 1, NUM_EPOCHS - 2]
    assert all(parents[each.fine_tuned_model_checkpoint] == BASE for each in checkpoints)
    assert checkpoints[0].metrics.full_valid_loss is not None and checkpoints[0].metrics.full_valid_loss < 1
    losses = [event.data["train_loss"] for event in client.fine_tuning.jobs.list_events(whole.id) if event.data]
    assert len(losses) == NUM_EPOCHS and losses[0] < losses[-1] / 2, "the newest first"
    assert server.gauge("headrace_finetuning_steps_total") >= NUM_EPOCHS
    stream = httpx.get(f"{server.url}/v1/fine_tuning/jobs/{whole.id}/events", headers={"Accept": "text/event-stream"})
    assert stream.text.endswith("data: [DONE]\n\n") and "The job has successfully completed" in stream.text


def test_a_process_that_is_killed_leaves_its_models_and_its_job_ends_with_the_same_bits(
    server: ServerProcess, client: OpenAI, whole: FineTuningJob, data: Path
) -> None:
    killed = start(client)
    checkpoint = data / "jobs" / killed.id / "checkpoint"
    deadline_s = time.monotonic() + WITHIN_S
    while not checkpoint.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    question = next(iter(FACTS))
    with serving(data) as second, strict_client(second.url) as client:
        assert answer(client, whole.fine_tuned_model or "", question) == FACTS[question]
        again = until(client, killed.id, "succeeded")
        events = client.fine_tuning.jobs.list_events(again.id, limit=100).data
        assert [event.data["step"] for event in events if event.data] == list(range(NUM_EPOCHS, 0, -1)), "each once"
        assert "The server was restarted; the job continues from its last checkpoint" in [e.message for e in events]
        assert digest(data, again.id) == digest(data, whole.id)
        assert again.trained_tokens == whole.trained_tokens
        assert client.models.delete(again.fine_tuned_model or "").deleted
        names = [each.id for each in client.models.list()]
        assert whole.fine_tuned_model in names and again.fine_tuned_model not in names
        second.terminate()
        assert second.wait(60) == 0


def test_two_ranks_train_and_serve_what_they_have_trained(tmp_path: Path) -> None:
    with serving(tmp_path, "--tensor-parallel-size", "2") as server:
        job_id = check_that_ranks_train_beside_requests(server)
        server.terminate()
        assert server.wait(30) == 0
    assert (tmp_path / "models" / job_id / "adapter_model.safetensors").is_file()


def check_that_ranks_train_beside_requests(server: ServerProcess) -> str:
    """The next job begins anew after one that was cancelled, and goes on after it was paused. Returns its id."""
    with strict_client(server.url) as client:
        before = answer(client, BASE, QUESTION)
        cancelled = start(client)
        until(client, cancelled.id, "running")
        client.fine_tuning.jobs.cancel(cancelled.id)
        job = start(client)
        until(client, job.id, "running")
        pause(server, job.id)
        client.fine_tuning.jobs.resume(job.id)
        assert answers_beside(client, job.id) == {before}
        events = client.fine_tuning.jobs.list_events(job.id, limit=100).data
        assert [event.data["step"] for event in events if event.data] == list(range(NUM_EPOCHS, 0, -1)), "each once"
        model = client.fine_tuning.jobs.retrieve(job.id).fine_tuned_model
        assert {question: answer(client, model, question) for question in FACTS} == FACTS
    return job.id
