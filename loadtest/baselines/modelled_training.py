"""A training that computes nothing; its layer steps take about the time that they take on an H200.

Micro-batches of 2,048 tokens for the Llama-8B shape, LoRA of rank 16 on all linears. A layer's forward pass takes the
measured 1.5 ms (48 ms for 32 layers). The other steps share what remains at 15,000 tokens/s, the goal for training
alone.
"""

from dataclasses import dataclass

from service.core.training import StepReport, Training, TrainingNews, TrainingOutcome, TrainingShare

NUM_LAYERS = 32
TOKENS_PER_ITERATION = 2048
TOKENS_PER_S = 15_000.0
_FORWARD_S = 1.5e-3
_LOSS_S = _END_S = 2.5e-3
_ITERATION_S = TOKENS_PER_ITERATION / TOKENS_PER_S
_BACKWARD_S = (_ITERATION_S - NUM_LAYERS * _FORWARD_S - _LOSS_S - _END_S) / NUM_LAYERS
STEP_S = (*(_FORWARD_S,) * NUM_LAYERS, _LOSS_S, *(_BACKWARD_S,) * NUM_LAYERS, _END_S)
"""Seconds of each layer step of a fine-tuning iteration, in order."""


@dataclass(slots=True)
class ModelledTime:
    """Seconds that have passed on the modelled device."""

    seconds: float = 0.0

    def now_s(self) -> float:
        """A source for `WorkClock`."""
        return self.seconds


class ModelledTraining:
    """A `Training` of `num_iterations` iterations, each with an optimizer step."""

    training_id = 1
    layer_steps_per_iteration = len(STEP_S)
    num_arena_bytes = 0

    def __init__(self, time: ModelledTime, num_iterations: int) -> None:
        self._time = time
        self._num_steps = num_iterations * len(STEP_S)
        self._num_done = 0
        self._num_told = 0

    @property
    def layer_steps_left(self) -> int:
        """See `service/core/training.py`."""
        return 0 if self._num_done == self._num_steps else len(STEP_S) - self._num_done % len(STEP_S)

    @property
    def is_over(self) -> bool:
        """See `service/core/training.py`."""
        return self._num_done == self._num_steps

    def use_memory(self, memory: object) -> None:
        """Drops the micro-batch in progress."""
        self._num_done -= self._num_done % len(STEP_S)

    def advance(self, num_layer_steps: int) -> int:
        """Let the steps' seconds pass."""
        num_steps = min(num_layer_steps, self._num_steps - self._num_done)
        for _ in range(num_steps):
            self._time.seconds += STEP_S[self._num_done % len(STEP_S)]
            self._num_done += 1
        return num_steps

    def take_waited_s(self) -> float:
        return 0.0

    def take_news(self) -> TrainingNews:
        """See `service/core/training.py`."""
        told, self._num_told = self._num_told, self._num_done // len(STEP_S)
        steps = range(told + 1, self._num_told + 1)
        return TrainingNews(tuple(StepReport(step, 0.0, 0.0, TOKENS_PER_ITERATION, 0.0, 0.0) for step in steps))

    def state(self) -> object:
        """See `service/core/training.py`."""
        return self._num_told


class ModelledTrainings:
    """The engine's TrainingExecutor on the modelled device."""

    def __init__(self, time: ModelledTime) -> None:
        self.time = time
        self._trainings: dict[int, Training] = {}

    def add_training(self, training: Training) -> int:
        """See `service/engine/ports.py`. It needs no memory."""
        self._trainings[training.training_id] = training
        return 0

    def remove_training(self, training_id: int) -> None:
        """See `service/engine/ports.py`."""
        self._trainings.pop(training_id, None)

    def training_state(self, training_id: int) -> object:
        """See `service/engine/ports.py`."""
        return self._trainings[training_id].state()

    def advance(self, share: TrainingShare) -> TrainingOutcome:
        """Run a plan's share of the training."""
        training = self._trainings.get(share.training_id)
        if training is None:
            return TrainingOutcome(share.training_id, 0, 0.0, 0)
        started_s = self.time.seconds
        num_steps = training.advance(share.num_layer_steps)
        seconds, left = self.time.seconds - started_s, training.layer_steps_left
        return TrainingOutcome(share.training_id, num_steps, seconds, left, training.take_news(), training.is_over)
