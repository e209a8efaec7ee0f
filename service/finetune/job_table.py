"""Database tables of fine-tuning: jobs, their events and checkpoints, and the resulting models.

All functions run on the database's thread.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from service.finetune.hyperparameters import Hyperparameters
from service.finetune.job import Job, JobCheckpoint, JobError, JobEvent, JobSpec, JobStatus, ValidatedData
from service.storage.database import Connection, Schema
from service.storage.listing import Page, PageQuery, take_page

JOBS = Schema(
    "fine_tuning_jobs",
    (
        """
        CREATE TABLE jobs (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            job_id TEXT NOT NULL UNIQUE,
            client TEXT NOT NULL,
            status TEXT NOT NULL,
            record TEXT NOT NULL
        ) STRICT;
        CREATE INDEX jobs_of_client ON jobs (client, number);
        CREATE INDEX jobs_by_status ON jobs (status, number);
        CREATE TABLE job_events (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            event_id TEXT NOT NULL UNIQUE,
            job_id TEXT NOT NULL REFERENCES jobs (job_id),
            record TEXT NOT NULL
        ) STRICT;
        CREATE INDEX events_of_job ON job_events (job_id, number);
        CREATE TABLE job_checkpoints (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            checkpoint_id TEXT NOT NULL UNIQUE,
            job_id TEXT NOT NULL REFERENCES jobs (job_id),
            record TEXT NOT NULL
        ) STRICT;
        CREATE INDEX checkpoints_of_job ON job_checkpoints (job_id, number);
        CREATE TABLE fine_tuned_models (
            name TEXT PRIMARY KEY,
            client TEXT NOT NULL,
            job_id TEXT NOT NULL,
            step INTEGER NOT NULL,
            folder TEXT NOT NULL,
            base_weights TEXT NOT NULL,
            num_bytes INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX models_of_job ON fine_tuned_models (job_id);
        """,
    ),
)


@dataclass(frozen=True, slots=True)
class FineTunedModel:
    """step: the job's step after which the model was made. folder: relative to the folder of all models. base_weights:
    digest of its base model."""

    name: str
    client: str
    job_id: str
    step: int
    folder: str
    base_weights: str
    num_bytes: int


def insert_job(connection: Connection, job: Job) -> None:
    connection.execute(
        "INSERT INTO jobs (job_id, client, status, record) VALUES (?, ?, ?, ?)",
        (job.job_id, job.client, job.status.value, _text(job)),
    )


def save_job(connection: Connection, job: Job) -> None:
    connection.execute(
        "UPDATE jobs SET status = ?, record = ? WHERE job_id = ?", (job.status.value, _text(job), job.job_id)
    )


def find_job(connection: Connection, job_id: str, client: str | None = None) -> Job | None:
    """None if there is none, or if it belongs to another client. client: None: any."""
    row = connection.execute(
        "SELECT record FROM jobs WHERE job_id = ?1 AND (?2 IS NULL OR client = ?2)", (job_id, client)
    ).fetchone()
    return None if row is None else _job(row)


def list_jobs(
    connection: Connection, client: str, metadata: Mapping[str, str] | None, query: PageQuery
) -> Page[Job] | None:
    """A client's jobs with all of this metadata; None: jobs without metadata. Returns None if none of them has the id
    `after`."""
    condition, arguments = "client = ?", [client]
    if metadata is None:
        condition += " AND json_extract(record, '$.spec.metadata') IS NULL"
    for key, value in (metadata or {}).items():
        condition += " AND EXISTS (SELECT 1 FROM json_each(record, '$.spec.metadata') WHERE key = ? AND value = ?)"
        arguments += [key, value]
    page = take_page(connection, "jobs", "job_id", "record", (condition, arguments), query)
    return None if page is None else Page([_job(row) for row in page.items], page.has_more)


def jobs_in(connection: Connection, statuses: Iterable[JobStatus]) -> list[Job]:
    """Jobs with these statuses, oldest first."""
    wanted = [status.value for status in statuses]
    marks = ", ".join("?" * len(wanted))
    rows = connection.execute(f"SELECT record FROM jobs WHERE status IN ({marks}) ORDER BY number", wanted)
    return [_job(row) for row in rows]


def count_jobs(connection: Connection) -> dict[str, int]:
    """Number of jobs per status, including zeros."""
    rows = connection.execute("SELECT status, COUNT(*) FROM jobs GROUP BY status").fetchall()
    counted = dict(map(tuple, rows))
    return {status.value: counted.get(status.value, 0) for status in JobStatus}


def count_unfinished(connection: Connection, client: str) -> int:
    ended = [status.value for status in JobStatus if status.is_final]
    marks = ", ".join("?" * len(ended))
    row = connection.execute(
        f"SELECT COUNT(*) FROM jobs WHERE client = ? AND status NOT IN ({marks})", (client, *ended)
    ).fetchone()
    return int(row[0])


def forget_oldest(connection: Connection, most: int) -> None:
    """If there are more than `most` jobs, delete the oldest ended ones, with events and checkpoints, not models."""
    ended = [status.value for status in JobStatus if status.is_final]
    marks = ", ".join("?" * len(ended))
    excess = connection.execute("SELECT COUNT(*) FROM jobs").fetchone()[0] - most
    if excess <= 0:
        return
    going = [
        row["job_id"]
        for row in connection.execute(
            f"SELECT job_id FROM jobs WHERE status IN ({marks}) ORDER BY number LIMIT ?", (*ended, excess)
        )
    ]
    for table in ("job_events", "job_checkpoints", "jobs"):
        connection.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(job_id,) for job_id in going])


def add_events(connection: Connection, job_id: str, events: Sequence[JobEvent]) -> None:
    connection.executemany(
        "INSERT INTO job_events (event_id, job_id, record) VALUES (?, ?, ?)",
        [(event.event_id, job_id, _text(event)) for event in events],
    )


def events_after(connection: Connection, job_id: str, number: int, limit: int) -> list[tuple[int, JobEvent]]:
    """(number, event) of up to `limit` events of a job with larger numbers than `number`, oldest first."""
    rows = connection.execute(
        "SELECT number, record FROM job_events WHERE job_id = ? AND number > ? ORDER BY number LIMIT ?",
        (job_id, number, limit),
    )
    return [(row["number"], JobEvent(**_fields(row))) for row in rows]


def list_events(connection: Connection, job_id: str, query: PageQuery) -> Page[JobEvent] | None:
    page = take_page(connection, "job_events", "event_id", "record", ("job_id = ?", [job_id]), query)
    return None if page is None else Page([JobEvent(**_fields(row)) for row in page.items], page.has_more)


def add_checkpoint(connection: Connection, job_id: str, checkpoint: JobCheckpoint) -> None:
    connection.execute(
        "INSERT INTO job_checkpoints (checkpoint_id, job_id, record) VALUES (?, ?, ?)",
        (checkpoint.checkpoint_id, job_id, _text(checkpoint)),
    )


def list_checkpoints(connection: Connection, job_id: str, query: PageQuery) -> Page[JobCheckpoint] | None:
    page = take_page(connection, "job_checkpoints", "checkpoint_id", "record", ("job_id = ?", [job_id]), query)
    return None if page is None else Page([JobCheckpoint(**_fields(row)) for row in page.items], page.has_more)


def delete_checkpoint(connection: Connection, job_id: str, model: str) -> None:
    """Delete the checkpoint with this model, if there is one."""
    connection.execute(
        "DELETE FROM job_checkpoints WHERE job_id = ? AND json_extract(record, '$.model') = ?", (job_id, model)
    )


def add_model(connection: Connection, model: FineTunedModel) -> None:
    connection.execute(
        "INSERT INTO fine_tuned_models (name, client, job_id, step, folder, base_weights, num_bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        dataclasses.astuple(model),
    )


def find_model(connection: Connection, name: str) -> FineTunedModel | None:
    row = connection.execute(f"SELECT {_MODEL} FROM fine_tuned_models WHERE name = ?", (name,)).fetchone()
    return None if row is None else FineTunedModel(*row)


def models_of(connection: Connection, job_id: str) -> list[FineTunedModel]:
    rows = connection.execute(f"SELECT {_MODEL} FROM fine_tuned_models WHERE job_id = ? ORDER BY step", (job_id,))
    return [FineTunedModel(*row) for row in rows]


def delete_model(connection: Connection, name: str) -> None:
    connection.execute("DELETE FROM fine_tuned_models WHERE name = ?", (name,))


def all_models(connection: Connection) -> list[FineTunedModel]:
    return [
        FineTunedModel(*row) for row in connection.execute(f"SELECT {_MODEL} FROM fine_tuned_models ORDER BY rowid")
    ]


_MODEL = "name, client, job_id, step, folder, base_weights, num_bytes"


def _text(value: Job | JobEvent | JobCheckpoint) -> str:
    return orjson.dumps(value).decode()


def _fields(row: sqlite3.Row) -> dict[str, Any]:
    fields: dict[str, Any] = orjson.loads(row["record"])
    return fields


def _job(row: sqlite3.Row) -> Job:
    fields = _fields(row)
    spec, data, error = fields.pop("spec"), fields.pop("data"), fields.pop("error")
    return Job(
        **{
            **fields,
            "status": JobStatus(fields["status"]),
            "result_files": tuple(fields["result_files"]),
            "spec": JobSpec(**{**spec, "targets": None if spec["targets"] is None else tuple(spec["targets"])}),
            "data": None if data is None else _data(data),
            "error": None if error is None else JobError(**error),
        }
    )


def _data(fields: dict[str, Any]) -> ValidatedData:
    given = fields["hyperparameters"]
    return ValidatedData(
        **{**fields, "hyperparameters": Hyperparameters(**{**given, "targets": tuple(given["targets"])})}
    )
