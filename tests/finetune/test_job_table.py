from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.finetune import job_table as table
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.job import Job, JobCheckpoint, JobError, JobEvent, JobSpec, JobStatus, ValidatedData
from service.storage.listing import PageQuery

FIRST_PAGE = PageQuery(None, 10, False)


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    for script in table.JOBS.versions:
        connection.executescript(script)
    return connection


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = connect()
    yield opened
    opened.close()


def new_job(number: int, client: str = "team", **spec: Any) -> Job:
    return Job(f"ftjob-{number}", client, number, "weights", JobSpec("base", "file-1", **spec))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
specs = st.builds(
    JobSpec,
    texts,
    texts,
    st.none() | texts,
    suffix=texts,
    seed=st.integers(0, 2**63 - 1),
    metadata=st.none() | st.dictionaries(texts, texts, max_size=3),
    num_epochs=st.none() | st.integers(1, 50),
    learning_rate_multiplier=st.none() | st.floats(1e-6, 1e6),
    targets=st.none() | st.lists(texts, max_size=3).map(tuple),
)
data = st.builds(
    ValidatedData,
    st.builds(Hyperparameters, learning_rate=st.floats(1e-6, 1), targets=st.lists(texts, max_size=3).map(tuple)),
    st.integers(1, 10**6),
    st.integers(1, 10**9),
    texts,
)


@given(spec=specs, data=data)
def test_a_job_is_read_as_it_was_written(spec: JobSpec, data: ValidatedData):
    connection = connect()
    job = Job("ftjob-1", "team", 1, "weights", spec)
    table.insert_job(connection, job)
    assert table.find_job(connection, job.job_id) == job
    running = job.validated(data).started().progressed(3, 40, 50)
    for later in (running, running.succeeded("ft:x", ("file-2",), 9), running.failed(JobError("code", "why"), 9)):
        table.save_job(connection, later)
        assert table.find_job(connection, job.job_id) == later
    connection.close()


def test_a_client_finds_its_own_jobs_only(connection: sqlite3.Connection):
    for job in (new_job(1), new_job(2, "other"), new_job(3)):
        table.insert_job(connection, job)
    page = table.list_jobs(connection, "team", {}, FIRST_PAGE)
    assert page is not None
    assert [job.job_id for job in page.items] == ["ftjob-3", "ftjob-1"]
    assert table.find_job(connection, "ftjob-2", "team") is None
    assert table.list_jobs(connection, "team", {}, PageQuery("ftjob-2", 10, False)) is None


def test_jobs_are_found_by_all_of_their_metadata(connection: sqlite3.Connection):
    odd = {'a"] or 1': "x'y", "b": ""}
    for number, metadata in enumerate(({"b": ""}, odd, None, {})):
        table.insert_job(connection, new_job(number, metadata=metadata))

    def found(metadata: dict[str, str] | None) -> list[int]:
        page = table.list_jobs(connection, "team", metadata, FIRST_PAGE)
        assert page is not None
        return [job.created_at for job in page.items]

    assert found({}) == [3, 2, 1, 0]
    assert found({"b": ""}) == [1, 0]
    assert found(odd) == [1]
    assert found({"b": "x"}) == []
    assert found(None) == [2]


def test_what_waits_is_found_by_its_status_the_oldest_first_and_counted(connection: sqlite3.Connection):
    for number in range(4):
        table.insert_job(connection, new_job(number))
    table.save_job(connection, new_job(1).cancelled(9))
    assert [job.created_at for job in table.jobs_in(connection, [JobStatus.VALIDATING_FILES])] == [0, 2, 3]
    assert table.count_jobs(connection)["validating_files"] == 3
    assert table.count_jobs(connection)["running"] == 0
    assert table.count_unfinished(connection, "team") == 3
    assert table.count_unfinished(connection, "other") == 0


def test_the_oldest_that_have_ended_are_forgotten_with_what_belongs_to_them(connection: sqlite3.Connection):
    for number in range(4):
        job = new_job(number)
        table.insert_job(connection, job)
        table.add_events(connection, job.job_id, [JobEvent(f"event-{number}", 1, "info", "made")])
        table.add_checkpoint(connection, job.job_id, JobCheckpoint(f"ckpt-{number}", 1, 8, f"ft:{number}", {}))
    for number in (1, 2, 3):
        table.save_job(connection, new_job(number).cancelled(9))
    table.forget_oldest(connection, 2)
    assert [number for number in range(4) if table.find_job(connection, f"ftjob-{number}")] == [0, 3]
    for name in ("job_events", "job_checkpoints"):
        assert connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] == 2
    table.forget_oldest(connection, 0)
    assert table.find_job(connection, "ftjob-0") is not None, "it has not ended"


def test_events_are_read_in_pages_and_as_they_come(connection: sqlite3.Connection):
    for number in (1, 2):
        table.insert_job(connection, new_job(number))
    events = [JobEvent(f"event-{n}", n, "info", f"Step {n}", "metrics", {"step": float(n)}) for n in range(5)]
    table.add_events(connection, "ftjob-1", events)
    table.add_events(connection, "ftjob-2", [JobEvent("another", 9, "warn", "of another job")])
    page = table.list_events(connection, "ftjob-1", PageQuery("event-3", 2, False))
    assert page is not None
    assert (list(page.items), page.has_more) == ([events[2], events[1]], True)
    first = table.events_after(connection, "ftjob-1", 0, 2)
    assert [event for _, event in first] == events[:2]
    assert [event for _, event in table.events_after(connection, "ftjob-1", first[-1][0], 9)] == events[2:]


def test_models_are_known_until_they_are_deleted(connection: sqlite3.Connection):
    made = [table.FineTunedModel(f"ft:{step}", "team", "ftjob-1", step, f"folder-{step}", "w", 7) for step in (8, 4)]
    for model in made:
        table.add_model(connection, model)
    assert table.all_models(connection) == made
    assert table.models_of(connection, "ftjob-1") == [made[1], made[0]]
    assert table.find_model(connection, "ft:8") == made[0]
    with pytest.raises(sqlite3.IntegrityError):
        table.add_model(connection, replace(made[0], folder="another"))
    table.insert_job(connection, new_job(1))
    for model in made:
        table.add_checkpoint(connection, "ftjob-1", JobCheckpoint(f"c{model.step}", 1, model.step, model.name, {}))
    table.delete_model(connection, "ft:8")
    table.delete_checkpoint(connection, "ftjob-1", "ft:8")
    assert table.find_model(connection, "ft:8") is None
    page = table.list_checkpoints(connection, "ftjob-1", FIRST_PAGE)
    assert page is not None
    assert [checkpoint.model for checkpoint in page.items] == ["ft:4"]
