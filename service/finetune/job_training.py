"""One job's time in the engine: from its files to a training, from its news to events, checkpoints and a model."""

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
"""Checkpoints that can be called, of the last epochs, as OpenAI keeps them; the last one is the job's own model."""

_WRITE_EVERY_S = 0.25
_STOPS_WITHIN_S = 60.0


class JobWork(Protocol):
    """What of a job takes long. Any thread; raises what ends the job."""

    def validate(
        self, job: Job, training_file: Path, validation_file: Path | None, check: Callable[[], None]
    ) -> ValidatedData:
        """check: called every now and then; what it raises ends the work."""
        ...

    def prepare(
        self,
        job: Job,
        training_file: Path,
        validation_file: Path | None,
        checkpoint: Path,
        check: Callable[[], None],
    ) -> Training:
        """A training from the last checkpoint on, if `checkpoint` is there. Refuses files whose data are not those that
        were validated."""
        ...

    def save(self, job: Job, state: StateOfStep, checkpoint: Path) -> None:
        """Whole and synced, or it is as before."""
        ...

    def export(self, job: Job, state: StateOfStep, folder: Path) -> None:
        """An adapter that can be served; the folder is there and empty."""
        ...


class TrainingEngine(Protocol):
    """The part of AsyncEngine that trains."""

    def start_training(self, training: Training, listener: TrainingListener) -> None: ...

    def stop_training(self, training_id: int, *, wants_state: bool) -> None:
        """With a last state, if wanted. Nothing happens if it has ended."""
        ...


class JobStopped(Exception):
    """Nobody wants this work any more."""


@dataclass(frozen=True, slots=True)
class JobTools:
    """in_thread: has work done in a thread. on_step: told of every optimizer step."""

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
        """Of the training and the validation file. Raises JobFault if one has gone."""
        paths = {param: self.files.path_of(await self.file(job, param, self.files.get)) for param in job.spec.files()}
        return paths["training_file"], paths.get("validation_file")

    async def file(self, job: Job, param: str, look_up: Callable[[str, str], Awaitable[StoredFile]]) -> StoredFile:
        """The file that this field of the job names. Raises JobFault if it has gone."""
        try:
            return await look_up(job.spec.files()[param], job.client)
        except NotFound as fault:
            raise JobFault("file_not_found", fault.message, param) from fault


class JobTraining:
    """Event loop. job: it runs, as the table says."""

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
        """The job has changed: one that is not to run any more is stopped."""
        if job.status is not JobStatus.RUNNING:
            self._is_ended = job.status.is_final
            self.stop()

    def stop(self) -> None:
        """It ends soon, as it is. Idempotent."""
        self._is_stopped = True
        if self._training_id is not None:
            self._tools.engine.stop_training(self._training_id, wants_state=not self._is_ended)

    async def complete(self) -> None:
        """Until all steps are done and the model is served, or it was stopped; the engine has no training of it then.

        Raises what ends the job, and TrainingInterrupted, after which it goes on in another process.
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
            message = "The server serves other weights now than when the job was made."
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
        """What was told before the process ended, and is done again now, is told once."""
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
        """To go on from here, whatever may happen."""
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
            return  # of an earlier process, which had come further
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
        """Write the model down and serve it. Of a job that has been cancelled meanwhile, it goes."""
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
