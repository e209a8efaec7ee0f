"""The whole life of jobs on a real data directory, with a scripted engine in the place of a model and a trainer."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.core.training import StepReport, TrainingListener
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.job import Job, JobSpec, JobStatus, ValidatedData
from service.finetune.job_faults import JobFault
from service.finetune.job_folders import JobFolders
from service.finetune.job_runner import JobRunner
from service.finetune.job_table import JOBS
from service.finetune.job_training import JobTools
from service.finetune.jobs import FineTuningJobs
from service.finetune.models import AdapterNames, FineTunedModels
from service.finetune.served_base import ServedBase
from service.finetune.training_run import StateOfStep
from service.process.daemon_thread import in_daemon_thread
from service.storage.storage import Storage

CLIENT, OTHER_CLIENT = "team", "others"
BASE = ServedBase(("base",), "weights-1", 64, frozenset({"q_proj", "v_proj"}), 64, 2048, 512)
NUM_EXAMPLES, NUM_EPOCHS = 4, 3
NUM_STEPS = NUM_EXAMPLES * NUM_EPOCHS
HYPERPARAMETERS = Hyperparameters(learning_rate=0.001, num_epochs=NUM_EPOCHS, batch_size=1)
DATA = ValidatedData(HYPERPARAMETERS, NUM_EXAMPLES, 100, "digest")


@dataclass(frozen=True)
class State:
    step: int


@dataclass
class ScriptedTraining:
    """Begins behind `first`."""

    training_id: int
    first: int


@dataclass
class ScriptedEngine:
    """Takes a step as often as it gets one from `steps`, in a thread; tells of a state after each `state_every` ones.

    fault: what it fails with in the place of step `fault_at`.
    """

    state_every: int = 2
    fault: Exception | None = None
    fault_at: int = 0
    trainings: list[ScriptedTraining] = field(default_factory=list)
    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    num_running: int = 0
    _stopped: dict[int, bool] = field(default_factory=dict)

    def start_training(self, training: Any, listener: TrainingListener) -> None:
        assert self.num_running == 0, "one at a time"
        self.num_running = 1
        self.trainings.append(training)
        threading.Thread(target=self._run, args=(training, listener), daemon=True).start()

    def stop_training(self, training_id: int, *, wants_state: bool = False) -> None:
        if self.num_running and self.trainings[-1].training_id == training_id and training_id not in self._stopped:
            self._stopped[training_id] = wants_state
            self.steps.release()

    def go(self, num_steps: int = 10**4) -> None:
        for _ in range(num_steps):
            self.steps.release()

    def _run(self, training: ScriptedTraining, listener: TrainingListener) -> None:
        fault = None
        for step in range(training.first + 1, NUM_STEPS + 1):
            self.steps.acquire()
            if training.training_id in self._stopped:
                if self._stopped[training.training_id]:
                    listener.snapshot(State(step - 1))
                break
            if self.fault is not None and step == self.fault_at:
                fault = self.fault
                break
            listener.step(StepReport(step, 1 / step, 0.5, 10, 0.001, 1.0, *((0.7, 0.6) if step % 4 == 0 else ())))
            if step % self.state_every == 0 or step == NUM_STEPS:
                listener.snapshot(State(step))
        self.num_running = 0
        listener.ended(fault)


@dataclass
class ScriptedWork:
    """A file whose first field is `bad` is refused. A checkpoint and a model are files with their step's number."""

    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    fault_of: dict[str, Exception] = field(default_factory=dict)
    is_open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.is_open.set()

    def validate(
        self, job: Job, training_file: Path, validation_file: Path | None, check: Callable[[], None]
    ) -> ValidatedData:
        while not self.is_open.wait(0.01):
            check()
        self._raise("validate")
        if training_file.read_bytes().startswith(b'{"bad'):
            raise JobFault("invalid_training_file", "line 1: is bad", "training_file")
        return DATA

    def prepare(
        self,
        job: Job,
        training_file: Path,
        validation_file: Path | None,
        checkpoint: Path,
        check: Callable[[], None],
    ) -> Any:
        self._raise("prepare")
        return ScriptedTraining(next(self.ids), int(checkpoint.read_text()) if checkpoint.exists() else 0)

    def save(self, job: Job, state: StateOfStep, checkpoint: Path) -> None:
        self._raise("save")
        checkpoint.write_text(str(state.step))

    def export(self, job: Job, state: StateOfStep, folder: Path) -> None:
        self._raise("export")
        (folder / "adapter").write_text(str(state.step))

    def _raise(self, what: str) -> None:
        if what in self.fault_of:
            raise self.fault_of[what]


class Names:
    """The names that are served, with their folders."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}

    def publish(self, name: str, folder: Path) -> None:
        self.folders[name] = folder

    def withdraw(self, name: str) -> None:
        del self.folders[name]


class JobScene:
    """storage: with the tables of jobs; whoever made it closes it."""

    def __init__(self, storage: Storage, base: ServedBase = BASE, names: AdapterNames | None = None) -> None:
        self.storage, folder = storage, storage.folder
        self.engine, self.work, self.names = ScriptedEngine(), ScriptedWork(), Names()
        self.reports: list[StepReport] = []
        self.jobs = FineTuningJobs(self.storage.database, base.weights)
        self.models = FineTunedModels(
            self.storage.database,
            folder / "models",
            self.storage.budget,
            names or self.names,
            base.weights,
            self._in_thread,
        )
        self.folders = JobFolders(folder / "jobs", self.storage.budget)
        self.tools = JobTools(
            self.jobs,
            self.storage.files,
            self.models,
            self.folders,
            self.work,
            self.engine,
            base,
            self._in_thread,
            self.reports.append,
        )
        self.runner = JobRunner(self.tools)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await in_daemon_thread(work, "job")

    async def file(self, content: bytes = b"{}\n", client: str = CLIENT) -> str:
        return (await self.storage.files.add(client, "fine-tune", "data.jsonl", content)).file_id

    async def job(self, content: bytes = b"{}\n", **fields: Any) -> Job:
        return await self.jobs.create(CLIENT, JobSpec("base", await self.file(content), **fields))

    async def until(self, job: Job, *statuses: JobStatus) -> Job:
        """As soon as it has one of these."""
        async with asyncio.timeout(10):
            while (now := await self.jobs.get(job.job_id, CLIENT)).status not in statuses:
                await asyncio.sleep(0.01)
        return now

    async def until_true(self, condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(10):
            while not (await told if isinstance(told := condition(), Awaitable) else told):
                await asyncio.sleep(0.01)

    async def messages(self, job: Job) -> list[str]:
        return [event.message async for event in self.jobs.follow(job)]


@asynccontextmanager
async def job_scene(folder: Path, base: ServedBase = BASE, max_bytes: int = 10**9) -> AsyncIterator[JobScene]:
    scene = JobScene(Storage(folder, max_bytes, (JOBS,)), base)
    scene.runner.start()
    try:
        yield scene
    finally:
        scene.jobs.close()
        await scene.runner.close()
        await scene.storage.close()
