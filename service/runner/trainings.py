"""The trainings that plans have shares of, and what they take of the device's time."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from service.core.iteration import IterationResult
from service.core.training import Arena, Training, TrainingOutcome, TrainingShare
from service.runner.kv_storage import KvStorage
from service.runner.kv_transfer import KvTransfer


class Trainings:
    """The engine's TrainingExecutor (service/engine/ports.py). A training that has failed has no more shares, and is
    there until it is removed. Engine thread only."""

    def __init__(self, storage: KvStorage, transfer: KvTransfer) -> None:
        self._is_gpu = storage.blocks.is_cuda
        self._storage = storage
        self._transfer = transfer
        self._trainings: dict[int, Training] = {}
        self._arenas: dict[int, Arena | None] = {}  # that they know of
        self._failed: set[int] = set()

    def add_training(self, training: Training) -> int:
        self._trainings[training.training_id] = training
        self._arenas[training.training_id] = None
        num_bytes = training.num_arena_bytes
        return self._storage.layout.num_blocks_to_lend(num_bytes) if num_bytes else 0

    def remove_training(self, training_id: int) -> None:
        training = self._trainings.pop(training_id, None)
        if training is not None and self._arenas.pop(training_id) is not None:
            training.use_memory(None)  # which is others' from now on
        self._failed.discard(training_id)

    @torch.inference_mode()
    def training_state(self, training_id: int) -> object:
        return self._trainings[training_id].state()

    @torch.inference_mode()
    def advance(self, share: TrainingShare) -> LaunchedShare:
        """Run its layer steps; on a GPU they are launched. A fault of the training is in the outcome."""
        training_id = share.training_id
        if training_id in self._failed or training_id not in self._trainings:
            nothing = TrainingOutcome(training_id, 0, 0.0, 0)
            return LaunchedShare(self, self._transfer, nothing, None, HostStopwatch())  # the device has nothing to do
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
        """What was launched of it has failed."""
        if training_id in self._trainings:
            self._failed.add(training_id)


class LaunchedShare:
    """The engine's PendingIteration (service/engine/ports.py) of layer steps, which the device may still be computing.
    outcome: as far as it is known. training: None if it had ended."""

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
        """What came of the share, and the training's news. Of faults it raises none that may be the training's."""
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
    """Runs from when it is made. is_of_device: by the device's clock."""

    @property
    def is_of_device(self) -> bool: ...

    def stop(self) -> None: ...

    def is_done(self) -> bool:
        """Whether `seconds` would not wait."""
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
    """By events on the current stream."""

    is_of_device = True

    def __init__(self) -> None:
        self._started, self._stopped = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._started.record()

    def stop(self) -> None:
        self._stopped.record()

    def is_done(self) -> bool:
        try:
            return bool(self._stopped.query())
        except RuntimeError:  # the device's; `seconds` has it too
            return True

    def seconds(self) -> float:
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1e3
