"""Training of one job: from its files to a training in the engine, from its news to events, checkpoints, a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from service.core.training import StepReport, Training, TrainingInterrupted, TrainingListener
from service.errors import NotFound, ServerError, Unavailable
from service.finetune.job import Job, JobCheckpoint, JobEvent, JobStatus, ValidatedData
from service.finetune.job_faults import JobFault
from service.finetune.job_folders import JobFolders
from service.finetune.job_table import FineTunedModel, add_checkpoint, add_model
from service.finetune.jobs import FineTuningJobs, job_event, new_id
from service.finetune.model_name import checkpoint_name, model_name
from service.finetune.models import FineTunedModels
from service.finetune.result_file import add_result_file
from service.finetune.served_base import ServedBase
from service.finetune.step_metrics import checkpoint_metrics, is_told, step_event
from service.finetune.training_run import StateOfStep, TrainingRun
from service.storage.database import Connection
from service.storage.file_store import FileStore
from service.storage.file_table import StoredFile

KEPT_MODELS = 3
"""How many models of the last epochs are kept, as OpenAI keeps them; the last one is the job's own model."""

_WRITE_EVERY_S = 0.25
_STOPS_WITHIN_S = 60.0


class JobWork(Protocol):
    """The slow work of a job. Any thread; an exception ends the job."""

    def validate(
        self, job: Job, training_file: Path, validation_file: Path | None, check: Callable[[], None]
    ) -> ValidatedData:
        """Read and check the files. check: called now and then; an exception from it ends the work."""
        ...

    def prepare(
        self,
        job: Job,
        training_file: Path,
        validation_file: Path | None,
        checkpoint: Path,
        check: Callable[[], None],
    ) -> Training:
        """Build the training, from the last checkpoint if `checkpoint` exists. Fails if the data differ from those that
        were validated."""
        ...

    def save(self, job: Job, state: StateOfStep, checkpoint: Path) -> None:
        """Write a checkpoint: atomic and synced."""
        ...

    def export(self, job: Job, state: StateOfStep, folder: Path) -> None:
        """Write a servable adapter into an existing empty folder."""
        ...


class TrainingEngine(Protocol):
    """The part of AsyncEngine that runs trainings."""

    def start_training(self, training: Training, listener: TrainingListener) -> None: ...

    def stop_training(self, training_id: int, *, wants_state: bool) -> None:
        """Stop the training, after a snapshot if wanted. Nothing happens if it has ended."""
        ...


class JobStopped(Exception):
    """The work is no longer wanted."""


@dataclass(frozen=True, slots=True)
class JobTools:
    """in_thread: runs work in a thread. on_step: called with every optimizer step's report."""

    jobs: FineTuningJobs
    files: FileStore
    models: FineTunedModels
    folders: JobFolders
    work: JobWork
    engine: TrainingEngine
    base: ServedBase
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    on_step: Callable[[StepReport], None]

    async def paths(self, job: Job) -> tuple[Path, Path | None]:
        """Paths of the training and the validation file. Raises JobFault if one does not exist any more."""
        paths = {param: self.files.path_of(await self.file(job, param, self.files.get)) for param in job.spec.files()}
        return paths["training_file"], paths.get("validation_file")

    async def file(self, job: Job, param: str, look_up: Callable[[str, str], Awaitable[StoredFile]]) -> StoredFile:
        """The file that this field of the job names. Raises JobFault if it does not exist any more."""
        try:
            return await look_up(job.spec.files()[param], job.client)
        except NotFound as fault:
            raise JobFault("file_not_found", fault.message, param) from fault


class JobTraining:
    """Event loop. job: has status running in the database."""

    def __init__(self, tools: JobTools, job: Job) -> None:
        assert job.data is not None
        self._tools = tools
        self._job = job
        self._num_steps = job.data.num_steps
        self._steps_per_epoch = job.data.num_steps // job.data.hyperparameters.num_epochs
        self._run = TrainingRun(self._is_epochs_end)
        self._training_id: int | None = None
        self._is_stopped = self._is_ended = False
        self._at_epochs_end: dict[int, StepReport] = {}
        self._began_s = time.monotonic()
        self._first_step = job.num_steps_done

    @property
    def job_id(self) -> str:
        return self._job.job_id

    def note(self, job: Job) -> None:
        """The job has changed: stop unless it is still to run."""
        if job.status is not JobStatus.RUNNING:
            self._is_ended = job.status.is_final
            self.stop()

    def stop(self) -> None:
        """Make it end soon, keeping its progress. Idempotent."""
        self._is_stopped = True
        if self._training_id is not None:
            self._tools.engine.stop_training(self._training_id, wants_state=not self._is_ended)

    async def complete(self) -> None:
        """Run until all steps are done and the model is served, or until stopped. The training has then ended.

        Raises whatever ends the job; TrainingInterrupted if the job will resume in another process.
        """
        try:
            training = await self._prepared()
        except JobStopped:
            return
        if self._is_stopped:
            return
        self._training_id = training.training_id
        try:
            self._tools.engine.start_training(training, self._run)
        except Unavailable as fault:
            raise TrainingInterrupted(fault.message) from fault
        try:
            await self._follow()
        finally:
            self.stop()
            await self._run.ends(_STOPS_WITHIN_S)

    async def _prepared(self) -> Training:
        tools, job = self._tools, self._job
        if job.base_weights != tools.base.weights:
            message = "The base model's weights have changed since the job was created."
            raise JobFault("base_model_changed", message, "model")
        paths = await tools.paths(job)
        checkpoint = tools.folders.checkpoint(job.job_id)
        work = partial(tools.work.prepare, job, *paths, checkpoint, self._check_goes_on)
        training: Training = await tools.in_thread(work)
        return training

    def _check_goes_on(self) -> None:
        if self._is_stopped:
            raise JobStopped

    async def _follow(self) -> None:
        while True:
            told = await self._run.news()
            if self._is_ended:
                return
            await self._write_steps(told.reports)
            for state in told.states:
                if state.step == self._num_steps:
                    await self._succeed(state)
                    return
                await self._keep(state)
            if told.is_over:
                if told.fault is not None and not self._is_stopped:
                    raise told.fault
                if not self._is_stopped:
                    raise ServerError("The training ended before its last step.")
                return
            await asyncio.sleep(_WRITE_EVERY_S)

    async def _write_steps(self, reports: Sequence[StepReport]) -> None:
        """Write events of new steps. Steps that are repeated after a restart were reported before, and are skipped."""
        for report in reports:
            self._tools.on_step(report)
            if report.step % self._steps_per_epoch == 0:
                self._at_epochs_end[report.step] = report
        new = [report for report in reports if report.step > self._job.num_steps_done]
        if not new:
            return
        num_tokens = self._job.num_trained_tokens + sum(report.num_trained_tokens for report in new)
        finish = self._estimated_finish(new[-1].step)
        events = [step_event(report, self._num_steps) for report in new if is_told(report.step, self._num_steps)]
        self._job = await self._tools.jobs.change(
            self.job_id, lambda job: job.progressed(new[-1].step, num_tokens, finish), events
        )

    def _estimated_finish(self, step: int) -> int | None:
        num_done = step - self._first_step
        now_s, lasted_s = time.time(), time.monotonic() - self._began_s
        return int(now_s + lasted_s * (self._num_steps - step) / num_done) if num_done > 0 else None

    async def _keep(self, state: StateOfStep) -> None:
        """Save a checkpoint to resume from; at the end of an epoch, also serve it."""
        tools = self._tools
        checkpoint = tools.folders.checkpoint(self.job_id)

        def save() -> None:
            tools.folders.make(self.job_id)
            tools.work.save(self._job, state, checkpoint)

        await tools.in_thread(save)
        tools.folders.count(self.job_id)
        if self._is_epochs_end(state):
            await self._serve_checkpoint(state)

    async def _serve_checkpoint(self, state: StateOfStep) -> None:
        name = checkpoint_name(self._tools.base.name, self._job, state.step)
        if any(model.name == name for model in await self._tools.models.of_job(self.job_id)):
            return  # made by an earlier process that had come further
        model = await self._written(name, f"{self.job_id}-step-{state.step}", state)
        event = job_event(f"Checkpoint created at step {state.step}: {name}")
        await self._publish(model, lambda job: job, [event])

    async def _succeed(self, state: StateOfStep) -> None:
        name = model_name(self._tools.base.name, self._job)
        model = await self._written(name, self.job_id, state)
        results = await add_result_file(self._tools.jobs, self._tools.files, self._job)
        now_s = int(time.time())
        events = [
            job_event(f"New fine-tuned model created: {name}"),
            job_event("The job has successfully completed"),
        ]
        await self._publish(model, lambda job: job.succeeded(name, results, now_s), events)

    async def _written(self, name: str, folder: str, state: StateOfStep) -> FineTunedModel:
        job, weights = self._job, self._tools.base.weights
        model = FineTunedModel(name, job.client, job.job_id, state.step, folder, weights, num_bytes=0)
        return await self._tools.models.write(model, partial(self._tools.work.export, job, state))

    async def _publish(self, model: FineTunedModel, change: Callable[[Job], Job], events: Sequence[JobEvent]) -> None:
        """Record the model in the database and serve it. If the job was cancelled meanwhile, remove the model."""
        report = self._at_epochs_end.get(model.step)
        metrics = {"step": float(model.step)} if report is None else checkpoint_metrics(report)
        checkpoint = JobCheckpoint(new_id("ftckpt_"), int(time.time()), model.step, model.name, metrics)

        def write_down(connection: Connection) -> None:
            add_model(connection, model)
            add_checkpoint(connection, self.job_id, checkpoint)

        try:
            self._job = await self._tools.jobs.change(self.job_id, change, events, write_down)
        except BaseException:
            await self._tools.models.forget(model)
            raise
        self._tools.models.publish(model)
        for old in await self._tools.models.of_job(self.job_id):
            if old.step <= model.step - KEPT_MODELS * self._steps_per_epoch:
                await self._tools.models.delete(old.name, old.client)

    def _is_epochs_end(self, state: StateOfStep) -> bool:
        return state.step % self._steps_per_epoch == 0
