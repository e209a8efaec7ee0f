"""A training whose numbers are hashes of everything that it reads in its memory, and the numbers that are right.

It computes late, with the toy model's slots as memory. If anything else is written there, or if it goes on in blocks
that belonged to others meanwhile, its numbers differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from service.core.training import StepReport, TrainingInterrupted, TrainingNews

STEP_S = 0.002


def next_number(number: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(repr((number, step)).encode()).digest()[:8], "big")


def number_after(num_iterations: int, steps_each: int) -> int:
    number = 0
    for _ in range(num_iterations):
        for step in range(steps_each):
            number = next_number(number, step)
    return number


class ToyMemory:
    """Slots of the toy model."""

    def __init__(self, slots: dict[int, object], places: Sequence[int]) -> None:
        self._slots = slots
        self._places = places

    def write(self, content: object) -> None:
        self._slots.update((place, (content, i)) for i, place in enumerate(self._places))

    def read(self) -> object:
        """What was written, if all of it is still there; else something that is not equal to it."""
        read = [self._slots.get(place) for place in self._places]
        first = read[0]
        content = first[0] if isinstance(first, tuple) else None
        return content if read == [(content, i) for i in range(len(read))] else tuple(read)


class ToyTraining:
    """A `Training` (service/core/training.py). num_arena_bytes: counted in blocks of the toy model. numbers: the number
    after each iteration."""

    def __init__(self, training_id: int, num_iterations: int, steps_each: int, num_blocks: int) -> None:
        self.training_id = training_id
        self.num_iterations = num_iterations
        self.layer_steps_per_iteration = steps_each
        self.num_arena_bytes = num_blocks
        self.numbers = [0]
        self.num_dropped = 0
        self._step = 0
        self._memory: ToyMemory | None = None
        self._untold: list[StepReport] = []

    @property
    def num_done(self) -> int:
        return len(self.numbers) - 1

    @property
    def layer_steps_left(self) -> int:
        return 0 if self.num_done == self.num_iterations else self.layer_steps_per_iteration - self._step

    @property
    def is_over(self) -> bool:
        return self.num_done == self.num_iterations and not self._untold

    def use_memory(self, memory: ToyMemory | None) -> None:
        self.num_dropped += self._step > 0
        self._memory, self._step = memory, 0

    def advance(self, num_layer_steps: int) -> int:
        done = 0
        while done < num_layer_steps and self.layer_steps_left:
            self._advance()
            done += 1
        return done

    def _advance(self) -> None:
        memory = self._memory
        assert memory is not None or not self.num_arena_bytes, "it computes in its memory"
        number = self.numbers[-1]
        if memory is not None and self._step:
            read = memory.read()
            number = read if isinstance(read, int) else -1
        elif self._step:
            number = self._kept
        number = self._kept = next_number(number, self._step)
        if memory is not None:
            memory.write(number)
        self._step += 1
        if self._step == self.layer_steps_per_iteration:
            self._step = 0
            self.numbers.append(number)
            self._untold.append(StepReport(self.num_done, 1.0, 0.5, 1, 1e-3, 1.0))

    def take_waited_s(self) -> float:
        return 0.0

    def take_news(self) -> TrainingNews:
        untold, self._untold = self._untold, []
        return TrainingNews(tuple(untold))

    def state(self) -> object:
        return self.numbers[-1]


class ToyListener:
    """A TrainingListener that records what it is told."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.ends: list[Exception | None] = []

    def step(self, report: StepReport) -> None:
        self.reports.append(report)

    def snapshot(self, state: object) -> None:
        pass

    def ended(self, fault: Exception | None) -> None:
        assert not isinstance(fault, TrainingInterrupted)
        self.ends.append(fault)
