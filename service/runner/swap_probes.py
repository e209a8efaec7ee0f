"""What transfers between device and host take, timed before serving."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import median

from service.core.iteration_plan import Transfer
from service.core.iteration_result import FinishedTransfer
from service.core.sampling_params import SamplingParams
from service.runner.kv_transfer import TransferTiming
from service.runner.model_runner import ModelRunner
from service.runner.warm_up import small_iteration

_ROUNDS = 5


def measure_swap(runner: ModelRunner) -> tuple[TransferTiming, ...]:
    """Timings to the host and back, of a plan's first transfer and of the one behind it, beside a step, as in
    traffic: it takes some of the memory's bandwidth. Before serving: the blocks' contents are lost.

    Medians of several rounds. The plans take turns, in another order each round: a host that launches the same one
    again and again does it faster than it ever will in traffic, and a first transfer of few blocks waits for that.
    """
    plans = tuple(runner.transfer.probes())
    rounds: list[list[tuple[FinishedTransfer, ...]]] = [[] for _ in plans]
    shuffled = random.Random(0)
    for _ in range(_ROUNDS):
        for number in shuffled.sample(range(len(plans)), len(plans)):
            rounds[number].append(small_iteration(runner, 1, SamplingParams(max_tokens=2), plans[number]))
    return tuple(timing for pair in zip(plans, rounds, strict=True) for timing in _medians(*pair))


def _medians(transfers: Sequence[Transfer], rounds: Sequence[Sequence[FinishedTransfer]]) -> Iterator[TransferTiming]:
    """Of one plan's transfers, timed in several rounds."""
    for transfer, of_one in zip(transfers, zip(*rounds, strict=True), strict=True):
        seconds = median(finished.seconds or 0.0 for finished in of_one)
        yield TransferTiming(transfer.to_host, len(transfer.device_blocks), seconds, of_one[0].is_first)
