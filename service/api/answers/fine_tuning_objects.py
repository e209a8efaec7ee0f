"""Jobs, their events and checkpoints in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from service.finetune.auto_hyperparameters import usual_learning_rate
from service.finetune.job import Job, JobCheckpoint, JobEvent, JobStatus
from service.finetune.model_name import ORGANIZATION
from service.finetune.served_base import ServedBase
from service.protocol.fine_tuning import (
    Auto,
    CheckpointList,
    CheckpointMetrics,
    CheckpointObject,
    FineTuningJobObject,
    JobErrorShape,
    JobEventList,
    JobEventObject,
    JobList,
    UsedHyperparameters,
    UsedMethod,
    UsedSupervised,
)
from service.storage.listing import Page

_DIGITS = 6

Value = TypeVar("Value")


def job_object(job: Job, base: ServedBase) -> FineTuningJobObject:
    spec, error = job.spec, job.error
    hyperparameters = _hyperparameters(job, base)
    is_done = job.status is JobStatus.SUCCEEDED and job.data is not None
    return FineTuningJobObject(
        id=job.job_id,
        created_at=job.created_at,
        error=None if error is None else JobErrorShape(code=error.code, message=error.message, param=error.param),
        fine_tuned_model=job.fine_tuned_model,
        finished_at=job.finished_at,
        estimated_finish=job.estimated_finish,
        hyperparameters=hyperparameters,
        method=UsedMethod(supervised=UsedSupervised(hyperparameters=hyperparameters)),
        metadata=None if spec.metadata is None else dict(spec.metadata),
        model=spec.model,
        organization_id=f"org-{ORGANIZATION}",
        result_files=list(job.result_files),
        seed=spec.seed,
        status=job.status.value,
        suffix=spec.suffix or None,
        trained_tokens=job.data.num_tokens * job.data.hyperparameters.num_epochs if is_done and job.data else None,
        training_file=spec.training_file,
        validation_file=spec.validation_file,
    )


def event_object(event: JobEvent) -> JobEventObject:
    return JobEventObject(
        id=event.event_id,
        created_at=event.created_at,
        level=event.level,
        message=event.message,
        type=event.type,
        data=None if event.data is None else dict(event.data),
    )


def checkpoint_object(checkpoint: JobCheckpoint, job_id: str) -> CheckpointObject:
    return CheckpointObject(
        id=checkpoint.checkpoint_id,
        created_at=checkpoint.created_at,
        fine_tuned_model_checkpoint=checkpoint.model,
        fine_tuning_job_id=job_id,
        metrics=CheckpointMetrics.model_validate(checkpoint.metrics),
        step_number=checkpoint.step,
    )


def job_list(page: Page[Job], base: ServedBase) -> JobList:
    jobs = [job_object(job, base) for job in page.items]
    first, last = _ends([job.id for job in jobs])
    return JobList(data=jobs, first_id=first, last_id=last, has_more=page.has_more)


def event_list(page: Page[JobEvent]) -> JobEventList:
    events = [event_object(event) for event in page.items]
    first, last = _ends([event.id for event in events])
    return JobEventList(data=events, first_id=first, last_id=last, has_more=page.has_more)


def checkpoint_list(page: Page[JobCheckpoint], job_id: str) -> CheckpointList:
    checkpoints = [checkpoint_object(checkpoint, job_id) for checkpoint in page.items]
    first, last = _ends([checkpoint.id for checkpoint in checkpoints])
    return CheckpointList(data=checkpoints, first_id=first, last_id=last, has_more=page.has_more)


def _hyperparameters(job: Job, base: ServedBase) -> UsedHyperparameters:
    """The hyperparameters in use; until the files are read, those that were asked for."""
    spec = job.spec
    if job.data is None:
        return UsedHyperparameters(
            n_epochs=_or_auto(spec.num_epochs),
            batch_size=_or_auto(spec.batch_size),
            learning_rate_multiplier=_or_auto(spec.learning_rate_multiplier),
            rank=_or_auto(spec.rank),
            alpha=_or_auto(spec.alpha),
            target_modules=_or_auto(None if spec.targets is None else list(spec.targets)),
            learning_rate=_or_auto(spec.learning_rate),
            max_length=_or_auto(spec.max_length),
        )
    used = job.data.hyperparameters
    multiplier = used.learning_rate / usual_learning_rate(base.hidden_size)
    return UsedHyperparameters(
        n_epochs=used.num_epochs,
        batch_size=used.batch_size,
        learning_rate_multiplier=spec.learning_rate_multiplier or round(multiplier, _DIGITS),
        rank=used.rank,
        alpha=used.alpha,
        target_modules=list(used.targets) or "auto",
        learning_rate=used.learning_rate,
        max_length=used.max_length,
    )


def _or_auto(value: Value | None) -> Value | Auto:
    return "auto" if value is None else value


def _ends(ids: Sequence[str]) -> tuple[str | None, str | None]:
    return (ids[0], ids[-1]) if ids else (None, None)
