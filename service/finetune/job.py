"""A fine-tuning job: what was asked for, how far it has come, and which status may follow which.

validating_files --> queued <--> running --> succeeded
       ^               ^            |
       +--- paused <---+------------+        and from each of these four: failed, cancelled
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

from service.errors import InvalidRequest
from service.finetune.hyperparameters import Hyperparameters


class JobStatus(StrEnum):
    VALIDATING_FILES = "validating_files"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


_VALIDATING, _QUEUED, _RUNNING, _PAUSED = list(JobStatus)[:4]
_LEGAL: Mapping[str, tuple[JobStatus, ...]] = MappingProxyType(
    {
        "validated": (_VALIDATING,),
        "started": (_QUEUED,),
        "interrupted": (_RUNNING,),
        "paused": (_VALIDATING, _QUEUED, _RUNNING),
        "resumed": (_PAUSED,),
        "completed": (_RUNNING, _PAUSED),
        "failed": (_VALIDATING, _QUEUED, _RUNNING, _PAUSED),
        "cancelled": (_VALIDATING, _QUEUED, _RUNNING, _PAUSED),
    }
)
"""The statuses in which each change is allowed. A paused job may complete: its last step may have been under way."""


class IllegalTransition(InvalidRequest):
    """The job's status does not allow the change. The message is for the client."""

    code = "invalid_job_status"


@dataclass(frozen=True, slots=True)
class JobError:
    """code: for programs. param: the request field at fault, if any."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the client asked for; never changes. None: chosen by the server.

    model: the base, or an adapter to continue from. training_file, validation_file: file ids. suffix: part of the new
    model's name, may be "". targets: as in Hyperparameters.
    """

    model: str
    training_file: str
    validation_file: str | None = None
    suffix: str = ""
    seed: int = 0
    metadata: Mapping[str, str] | None = None
    num_epochs: int | None = None
    batch_size: int | None = None
    learning_rate_multiplier: float | None = None
    learning_rate: float | None = None
    rank: int | None = None
    alpha: float | None = None
    targets: tuple[str, ...] | None = None
    max_length: int | None = None

    def files(self) -> dict[str, str]:
        """File ids by the field that names them."""
        files = {"training_file": self.training_file}
        return files if self.validation_file is None else {**files, "validation_file": self.validation_file}


@dataclass(frozen=True, slots=True)
class ValidatedData:
    """The result of reading a job's files. data_digest: of all examples' tokens; the job resumes only with equal data.

    num_truncated: examples of both files that were cut at max_length. num_left_out: examples dropped because nothing
    trained was left; not part of `num_examples`.
    """

    hyperparameters: Hyperparameters
    num_examples: int
    num_tokens: int
    data_digest: str
    num_truncated: int = 0
    num_left_out: int = 0

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole job."""
        return self.hyperparameters.num_steps(self.num_examples)


@dataclass(frozen=True, slots=True)
class Job:
    """The state of a job at one time. Times are Unix seconds.

    client: name of the API key that owns it. base_weights: digest of the base model that it is trained on; it resumes
    only on the same weights. data: None until its files are read. num_trained_tokens: in the steps done so far.
    estimated_finish: None unless it is running.
    """

    job_id: str
    client: str
    created_at: int
    base_weights: str
    spec: JobSpec
    status: JobStatus = JobStatus.VALIDATING_FILES
    data: ValidatedData | None = None
    num_steps_done: int = 0
    num_trained_tokens: int = 0
    estimated_finish: int | None = None
    finished_at: int | None = None
    fine_tuned_model: str | None = None
    result_files: tuple[str, ...] = ()
    error: JobError | None = None

    def __post_init__(self) -> None:
        assert (self.finished_at is not None) == self.status.is_final
        assert (self.error is not None) == (self.status is JobStatus.FAILED)
        assert (self.fine_tuned_model is not None) == (self.status is JobStatus.SUCCEEDED)

    def validated(self, data: ValidatedData) -> Job:
        return replace(self._now("validated", _QUEUED), data=data)

    def started(self) -> Job:
        return self._now("started", _RUNNING)

    def progressed(self, num_steps_done: int, num_trained_tokens: int, estimated_finish: int | None) -> Job:
        """Record progress, including steps done just before a pause. No effect once the job has ended."""
        if self.status.is_final:
            return self
        return replace(
            self,
            num_steps_done=num_steps_done,
            num_trained_tokens=num_trained_tokens,
            estimated_finish=estimated_finish if self.status is _RUNNING else None,
        )

    def interrupted(self) -> Job:
        """The process that ran it has ended: it will resume from its last checkpoint."""
        return self._now("interrupted", _QUEUED)

    def paused(self) -> Job:
        return self._now("paused", _PAUSED)

    def resumed(self) -> Job:
        return self._now("resumed", _VALIDATING if self.data is None else _QUEUED)

    def succeeded(self, fine_tuned_model: str, result_files: tuple[str, ...], now_s: int) -> Job:
        return self._ended(
            "completed", JobStatus.SUCCEEDED, now_s, fine_tuned_model=fine_tuned_model, result_files=result_files
        )

    def failed(self, error: JobError, now_s: int) -> Job:
        return self._ended("failed", JobStatus.FAILED, now_s, error=error)

    def cancelled(self, now_s: int) -> Job:
        return self._ended("cancelled", JobStatus.CANCELLED, now_s)

    def _now(self, change: str, status: JobStatus) -> Job:
        self._check(change)
        return replace(self, status=status, estimated_finish=None)

    def _ended(self, change: str, status: JobStatus, now_s: int, **facts: Any) -> Job:
        self._check(change)
        return replace(self, status=status, finished_at=now_s, estimated_finish=None, **facts)

    def _check(self, change: str) -> None:
        if self.status not in _LEGAL[change]:
            raise IllegalTransition(f"The job {self.job_id} is {self.status.value}; it cannot be {change} now.")


@dataclass(frozen=True, slots=True)
class JobEvent:
    """data: a step's numbers if type is `metrics`, else None."""

    event_id: str
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"] = "message"
    data: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class JobCheckpoint:
    """A servable model from the end of an earlier epoch. metrics: named as OpenAI names them."""

    checkpoint_id: str
    created_at: int
    step: int
    model: str
    metrics: Mapping[str, float]
