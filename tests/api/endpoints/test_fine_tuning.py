from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from service.config import ApiConfig
from service.finetune.fine_tuning import FineTuning
from service.storage.storage import Storage
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.some_adapters import SomeAdapters
from tests.api.wire import CHAT, chat, error_of
from tests.e2e.strict_client import strict_client
from tests.finetune.job_scene import BASE, NUM_STEPS, JobScene

JOBS = "/v1/fine_tuning/jobs"
CONFIG = ApiConfig((MODEL, "alias"), api_keys=("ann:none", "bob:sk-b"), serves_adapters=True)
BOB = {"Authorization": "Bearer sk-b"}
HYPERPARAMETERS = "method.supervised.hyperparameters"


class Tuning:
    """A server whose jobs are scripted."""

    def __init__(self) -> None:
        self.adapters = SomeAdapters("poet")
        self.made: JobScene
        self.server: RunningServer

    def fine_tuning(self, storage: Storage) -> FineTuning:
        base = replace(BASE, names=(MODEL, "alias"))
        self.made = JobScene(storage, base, self.adapters)
        self.made.runner.start()
        return FineTuning(self.made.jobs, self.made.models, base)

    def reset(self) -> None:
        """What an earlier test has left over of steps."""
        while self.made.engine.steps.acquire(blocking=False):
            pass


@pytest.fixture(scope="module")
def _shared() -> Iterator[Tuning]:
    tuning = Tuning()
    with running(Scene(config=CONFIG, adapters=tuning.adapters, fine_tuning=tuning.fine_tuning)) as tuning.server:
        yield tuning


@pytest.fixture
def tuning(_shared: Tuning) -> Tuning:
    _shared.reset()
    return _shared


@pytest.fixture
def client(tuning: Tuning) -> Iterator[OpenAI]:
    with strict_client(tuning.server.base_url) as client:
        yield client


@pytest.fixture
def http(tuning: Tuning) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tuning.server.base_url, headers={"Authorization": "Bearer none"}) as http:
        yield http


@pytest.fixture
def file_id(client: OpenAI) -> str:
    return client.files.create(file=("data.jsonl", b"{}\n"), purpose="fine-tune").id


def until(client: OpenAI, job_id: str, *statuses: str) -> Any:
    deadline_s = time.monotonic() + 20
    while (job := client.fine_tuning.jobs.retrieve(job_id)).status not in statuses:
        assert time.monotonic() < deadline_s, job
        time.sleep(0.01)
    return job


def test_a_job_makes_a_model_that_answers_under_its_name(tuning: Tuning, client: OpenAI, file_id: str) -> None:
    made = client.fine_tuning.jobs.create(
        model=MODEL, training_file=file_id, validation_file=file_id, suffix="facts", seed=5, metadata={"who": "me"}
    )
    assert (made.status, made.object, made.model, made.seed) == ("validating_files", "fine_tuning.job", MODEL, 5)
    assert made.hyperparameters.n_epochs == made.hyperparameters.batch_size == "auto"
    assert made.fine_tuned_model is made.finished_at is made.trained_tokens is made.error is None
    tuning.made.engine.go(NUM_STEPS)
    job = until(client, made.id, "succeeded")
    assert job.fine_tuned_model == f"ft:{MODEL}:headrace:facts:{job.id[6:18]}"
    assert (job.hyperparameters.n_epochs, job.hyperparameters.batch_size, job.trained_tokens) == (3, 1, 300)
    assert job.method is not None and job.method.supervised is not None
    assert job.method.supervised.hyperparameters.n_epochs == 3
    assert job.organization_id and job.metadata == {"who": "me"} and job.validation_file == file_id
    assert client.files.content(job.result_files[0]).text.startswith("step,train_loss")
    tuning.server.say("ink")
    names = [model.id for model in client.models.list()]
    checkpoints = [each.fine_tuned_model_checkpoint for each in client.fine_tuning.jobs.checkpoints.list(job.id)]
    assert checkpoints == [job.fine_tuned_model, *(f"{job.fine_tuned_model}:ckpt-step-{step}" for step in (8, 4))]
    for name in checkpoints:
        assert name in names
        answer = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "hi"}])
        assert (answer.model, answer.choices[0].message.content) == (name, "ink")
    assert client.models.delete(job.fine_tuned_model).deleted
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve(job.fine_tuned_model)
    assert client.fine_tuning.jobs.retrieve(job.id).fine_tuned_model == job.fine_tuned_model


def test_events_are_listed_with_the_newest_first_and_streamed_as_they_come(
    tuning: Tuning, client: OpenAI, http: httpx.Client, file_id: str
) -> None:
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file_id)
    with http.stream("GET", f"{JOBS}/{job.id}/events", headers={"Accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        first = [line for line, _ in zip(lines, range(6), strict=False)]
        assert json.loads(first[1].removeprefix("data: "))["message"] == f"Created fine-tuning job: {job.id}"
        tuning.made.engine.go(NUM_STEPS)
        rest = list(lines)
    told = [json.loads(line[6:]) for line in [*first, *rest] if line.startswith("data: {")]
    assert [line for line in rest if line][-1] == "data: [DONE]"
    listed = list(client.fine_tuning.jobs.list_events(job.id, limit=7))
    assert [event.id for event in listed] == [event["id"] for event in reversed(told)]
    assert {event.object for event in listed} == {"fine_tuning.job.event"}
    metrics = [event for event in listed if event.type == "metrics"]
    assert [event.data["step"] for event in metrics] == list(range(NUM_STEPS, 0, -1))
    again = http.get(f"{JOBS}/{job.id}/events", params={"stream": "true"}).text
    assert again.count("event: fine_tuning.job.event") == len(told) and again.endswith("data: [DONE]\n\n")


def test_a_job_is_paused_resumed_and_cancelled(
    tuning: Tuning, client: OpenAI, http: httpx.Client, file_id: str
) -> None:
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file_id)
    until(client, job.id, "running")
    paused = http.post(f"{JOBS}/{job.id}/pause").json()  # a status that openai-python's strict types do not know
    assert paused["status"] == "paused"
    error = error_of(http.post(f"{JOBS}/{job.id}/pause"))
    assert error["code"] == "invalid_job_status" and "is paused" in error["message"]
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"
    until(client, job.id, "running")
    cancelled = client.fine_tuning.jobs.cancel(job.id)
    assert cancelled.status == "cancelled" and cancelled.finished_at is not None
    for verb in ("pause", "resume", "cancel"):
        assert http.post(f"{JOBS}/{job.id}/{verb}").status_code == 400


def test_jobs_are_listed_in_pages_and_by_metadata(client: OpenAI, file_id: str) -> None:
    made = [
        client.fine_tuning.jobs.create(model=MODEL, training_file=file_id, metadata={"run": "7", "n": str(number)}).id
        for number in range(3)
    ]
    found = client.fine_tuning.jobs.list(limit=2, metadata={"run": "7"})
    assert ([job.id for job in found.data], found.has_more) == (made[:0:-1], True)
    assert [job.id for job in found] == made[::-1]
    assert [job.id for job in client.fine_tuning.jobs.list(metadata={"run": "7", "n": "1"})] == [made[1]]
    assert [job.id for job in client.fine_tuning.jobs.list(after=made[1], limit=1).data] == [made[0]]
    for job_id in made:
        client.fine_tuning.jobs.cancel(job_id)


def test_a_job_and_its_model_are_their_clients_alone(tuning: Tuning, client: OpenAI, file_id: str) -> None:
    tuning.made.engine.go(NUM_STEPS)
    job = client.fine_tuning.jobs.create(model=MODEL, training_file=file_id)
    model = until(client, job.id, "succeeded").fine_tuned_model
    with httpx.Client(base_url=tuning.server.base_url, headers=BOB) as bob:
        assert bob.get(JOBS).json()["data"] == []
        for path in ("", "/events", "/checkpoints"):
            assert bob.get(f"{JOBS}/{job.id}{path}").status_code == 404
        for verb in ("pause", "resume", "cancel"):
            assert bob.post(f"{JOBS}/{job.id}/{verb}").status_code == 404
        assert bob.delete(f"/v1/models/{model}").status_code == 404
        refused = error_of(bob.post(JOBS, json={"model": MODEL, "training_file": file_id}))
        assert refused["param"] == "training_file" and "there is no file" in refused["message"]
    assert client.models.retrieve(model).id == model


def test_a_job_that_fails_says_why(client: OpenAI) -> None:
    file_id = client.files.create(file=("data.jsonl", b'{"bad": 1}\n'), purpose="fine-tune").id
    job = until(client, client.fine_tuning.jobs.create(model=MODEL, training_file=file_id).id, "failed")
    assert job.error is not None and job.finished_at is not None
    assert (job.error.code, job.error.param) == ("invalid_training_file", "training_file")
    last = client.fine_tuning.jobs.list_events(job.id, limit=1).data[0]
    assert (last.level, last.message) == ("error", f"The job failed: {job.error.message}")


def test_a_file_for_another_purpose_is_refused(client: OpenAI) -> None:
    file_id = client.files.create(file=("data.jsonl", b"{}\n"), purpose="batch").id
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.fine_tuning.jobs.create(model=MODEL, training_file=file_id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "nobody"}, "model"),
        ({"training_file": "file-nothing"}, "training_file"),
        ({"validation_file": "file-nothing"}, "validation_file"),
        ({"suffix": "a:b"}, "suffix"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"suffix": ""}, "suffix"),
        ({"seed": -1}, "seed"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"x" * 65: ""}}, "metadata"),
        ({"metadata": {"x": "y" * 513}}, "metadata"),
        ({"metadata": {"x": 1}}, "metadata.x"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations"),
        ({"method": {"type": "dpo", "dpo": {}}}, "method.type"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "other"}}, "method.type"),
        ({"hyperparameters": {"n_epochs": 51}}, "hyperparameters.n_epochs"),
        ({"n_epochs": 0}, f"{HYPERPARAMETERS}.n_epochs"),
        ({"n_epochs": "many"}, f"{HYPERPARAMETERS}.n_epochs"),
        ({"batch_size": 257}, f"{HYPERPARAMETERS}.batch_size"),
        ({"learning_rate_multiplier": 0}, f"{HYPERPARAMETERS}.learning_rate_multiplier"),
        ({"learning_rate_multiplier": 1, "learning_rate": 0.1}, f"{HYPERPARAMETERS}.learning_rate"),
        ({"rank": 65}, f"{HYPERPARAMETERS}.rank"),
        ({"alpha": -1.0}, f"{HYPERPARAMETERS}.alpha"),
        ({"max_length": 2049}, f"{HYPERPARAMETERS}.max_length"),
        ({"target_modules": ["q_proj", "lm_head"]}, f"{HYPERPARAMETERS}.target_modules"),
        ({"target_modules": []}, f"{HYPERPARAMETERS}.target_modules"),
        ({"target_modules": ["q_proj"] * 65}, "target_modules"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    http: httpx.Client, file_id: str, fields: dict[str, Any], param: str
) -> None:
    own = {"n_epochs", "batch_size", "learning_rate_multiplier", "learning_rate", "rank", "alpha"}
    of_method = {name: value for name, value in fields.items() if name in own | {"max_length", "target_modules"}}
    body = {"model": MODEL, "training_file": file_id, **{k: v for k, v in fields.items() if k not in of_method}}
    if of_method:
        body["method"] = {"type": "supervised", "supervised": {"hyperparameters": of_method}}
    answer = http.post(JOBS, json=body)
    assert answer.status_code in (400, 404)
    assert error_of(answer)["param"] == param


def test_both_forms_of_hyperparameters_are_one_too_many(http: httpx.Client, file_id: str) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 1}}}
    body = {"model": MODEL, "training_file": file_id, "method": method, "hyperparameters": {"n_epochs": 1}}
    assert error_of(http.post(JOBS, json=body))["param"] == "hyperparameters"


def test_extensions_are_used_and_unknown_fields_are_named(tuning: Tuning, http: httpx.Client, file_id: str) -> None:
    given = {"n_epochs": 2, "rank": 4, "alpha": 8, "target_modules": ["v_proj", "q_proj"], "max_length": 64}
    given |= {"learning_rate": 0.5, "batch_size": "auto", "dropout": 0.1}
    body = {"model": "alias", "training_file": file_id, "hyperparameters": given, "colour": "red"}
    answer = http.post(JOBS, json=body)
    assert answer.headers["x-ignored-params"] == "colour,hyperparameters.dropout"
    job_id = answer.json()["id"]
    shown = answer.json()["hyperparameters"]
    assert shown["target_modules"] == ["q_proj", "v_proj"]
    assert (shown["rank"], shown["alpha"], shown["learning_rate"], shown["batch_size"]) == (4, 8.0, 0.5, "auto")
    http.post(f"{JOBS}/{job_id}/cancel")


@pytest.mark.parametrize("path", ["?limit=0", "?limit=101", "?after=nothing", "?metadata=x", "?metadata[]=x"])
def test_a_page_that_cannot_be_is_refused(http: httpx.Client, path: str) -> None:
    assert http.get(JOBS + path).status_code == 400


def test_only_what_was_fine_tuned_is_deleted(http: httpx.Client) -> None:
    for name in (MODEL, "poet"):
        assert error_of(http.delete(f"/v1/models/{name}"))["code"] == "permission_denied"
    assert http.delete("/v1/models/ft:nobody").status_code == 404


def test_one_may_go_on_from_an_adapter(http: httpx.Client, file_id: str) -> None:
    answer = http.post(JOBS, json={"model": "poet", "training_file": file_id})
    assert answer.json()["model"] == "poet"
    http.post(f"{JOBS}/{answer.json()['id']}/cancel")


def test_where_it_is_off_it_says_how_to_turn_it_on() -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        for answer in (http.get(JOBS), http.post(JOBS, json={}), http.get(f"{JOBS}/ftjob-1/events")):
            error = error_of(answer)
            assert answer.status_code == 404 and "--enable-finetuning" in error["message"]
            assert error["code"] == "fine_tuning_disabled"
        assert error_of(http.delete(f"/v1/models/{MODEL}"))["code"] == "permission_denied"
        assert http.post(CHAT, json=chat()).status_code == 200


def test_a_model_that_cannot_be_trained_is_refused_when_the_job_is_made() -> None:
    tuning = Tuning()

    def untrainable(storage: Storage) -> FineTuning:
        return replace(made := tuning.fine_tuning(storage), base=replace(made.base, refusal="Opt cannot be trained"))

    with running(Scene(fine_tuning=untrainable)) as server, httpx.Client(base_url=server.base_url) as http:
        error = error_of(http.post(JOBS, json={"model": MODEL, "training_file": "file-1"}))
        assert (error["param"], error["message"]) == ("model", "Opt cannot be trained")
