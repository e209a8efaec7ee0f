"""The trainings that plans can advance, and the device time they take."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from service.core.iteration import IterationResult
from service.core.training import Arena, Training, TrainingOutcome, TrainingShare
from service.runner.kv_storage import KvStorage
from service.runner.kv_transfer import KvTransfer


class Trainings:
    """The engine's TrainingExecutor (service/engine/ports.py). A training that has failed gets no more layer steps; it
    stays here until it is removed. Engine thread only."""

    def __init__(self, storage: KvStorage, transfer: KvTransfer) -> None:
        self._is_gpu = storage.blocks.is_cuda
        self._storage = storage
        self._transfer = transfer
        self._trainings: dict[int, Training] = {}
        self._arenas: dict[int, Arena | None] = {}  # as last told to the training
        self._failed: set[int] = set()

    def add_training(self, training: Training) -> int:
        self._trainings[training.training_id] = training
        self._arenas[training.training_id] = None
        num_bytes = training.num_arena_bytes
        return self._storage.layout.num_blocks_to_lend(num_bytes) if num_bytes else 0

    def remove_training(self, training_id: int) -> None:
        training = self._trainings.pop(training_id, None)
        if training is not None and self._arenas.pop(training_id) is not None:
            training.use_memory(None)  # it belongs to others from now on
        self._failed.discard(training_id)

    @torch.inference_mode()
    def training_state(self, training_id: int) -> object:
        return self._trainings[training_id].state()

    @torch.inference_mode()
    def advance(self, share: TrainingShare) -> LaunchedShare:
        """Run the share's layer steps; on a GPU they are launched. An error of the training is reported in the
        outcome."""
        training_id = share.training_id
        if training_id in self._failed or training_id not in self._trainings:
            nothing = TrainingOutcome(training_id, 0, 0.0, 0)
            return LaunchedShare(self, self._transfer, nothing, None, HostStopwatch())  # nothing is launched
        watch: Stopwatch = DeviceStopwatch() if self._is_gpu else HostStopwatch()
        training, num_steps = self._trainings[training_id], 0
        fault: Exception | None = None
        try:
            self._use_arena(training, share.arena)
            num_steps = training.advance(share.num_layer_steps)
        except Exception as raised:
            fault = raised
            self._failed.add(training_id)
        watch.stop()
        left = 0 if fault is not None else training.layer_steps_left
        outcome = TrainingOutcome(training_id, num_steps, 0.0, left, fault=fault)
        return LaunchedShare(self, self._transfer, outcome, training, watch)

    def _use_arena(self, training: Training, arena: Arena | None) -> None:
        if arena != self._arenas[training.training_id]:
            self._arenas[training.training_id] = arena
            memory = None if arena is None else self._storage.memory_of(arena.block_ids, training.num_arena_bytes)
            training.use_memory(memory)

    def note_failure(self, training_id: int) -> None:
        """Layer steps that were launched for it have failed."""
        if training_id in self._trainings:
            self._failed.add(training_id)


class LaunchedShare:
    """The engine's PendingIteration (service/engine/ports.py) for layer steps, which the device may still be computing.
    outcome: what is known of it so far. training: None if it had already failed or been removed."""

    def __init__(
        self,
        trainings: Trainings,
        transfer: KvTransfer,
        outcome: TrainingOutcome,
        training: Training | None,
        watch: Stopwatch,
    ) -> None:
        self._trainings = trainings
        self._transfer = transfer
        self._outcome = outcome
        self._training = training
        self._watch = watch

    def is_done(self) -> bool:
        return self._watch.is_done()

    @torch.inference_mode()
    def wait(self) -> IterationResult:
        """The outcome of the share, and the training's news. Errors that may be the training's are not raised but put
        into the outcome."""
        outcome = self._outcome if self._training is None else self._of(self._training)
        try:
            finished = self._transfer.take_finished(wait=False)
        except BaseException:
            self._transfer.abandon()
            raise
        compute_s = outcome.seconds if self._watch.is_of_device else None
        return IterationResult((), finished, compute_s=compute_s, training=outcome)

    def _of(self, training: Training) -> TrainingOutcome:
        outcome = self._outcome
        try:
            outcome = outcome._replace(seconds=max(0.0, self._watch.seconds() - training.take_waited_s()))
            return outcome._replace(news=training.take_news(), is_over=training.is_over)
        except Exception as fault:
            self._trainings.note_failure(outcome.training_id)
            return outcome._replace(fault=outcome.fault or fault)


class Stopwatch(Protocol):
    """Runs from its construction. is_of_device: measures by the device's clock."""

    @property
    def is_of_device(self) -> bool: ...

    def stop(self) -> None: ...

    def is_done(self) -> bool:
        """Whether `seconds` would return without waiting."""
        ...

    def seconds(self) -> float: ...


class HostStopwatch:
    is_of_device = False

    def __init__(self) -> None:
        self._started_s = self._stopped_s = time.perf_counter()

    def stop(self) -> None:
        self._stopped_s = time.perf_counter()

    def is_done(self) -> bool:
        return True

    def seconds(self) -> float:
        return self._stopped_s - self._started_s


class DeviceStopwatch:
    """Measures with events on the current stream."""

    is_of_device = True

    def __init__(self) -> None:
        self._started, self._stopped = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._started.record()

    def stop(self) -> None:
        self._stopped.record()

    def is_done(self) -> bool:
        try:
            return bool(self._stopped.query())
        except RuntimeError:  # a device error: `seconds` raises it
            return True

    def seconds(self) -> float:
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1e3
