"""Errors of predictors of iteration times, on recorded iterations: each is predicted, then learned from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from loadtest.baselines.moving_average import MovingAverage
from loadtest.baselines.preemption_judge import Timing
from service.prediction.iteration_time import DECODE_EVERY, FEATURES, IterationTime, PaddedSize, StepSize
from service.prediction.workload import Workload


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors in percent of the measured time, over `count` iterations. over, under: mean error of those predicted too
    long and too short."""

    count: int
    mean: float
    p90: float
    over: float
    under: float

    @classmethod
    def of(cls, relative: Sequence[float]) -> "Errors":
        sizes = [100 * abs(error) for error in relative]
        over, under = ([100 * abs(error) for error in relative if (error > 0) == sign] for sign in (True, False))
        p90 = quantiles(sizes, n=10)[-1] if len(sizes) > 1 else _mean(sizes)
        return cls(len(sizes), _mean(sizes), p90, _mean(over), _mean(under))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A predictor that learns as it goes. learn: gets an iteration, its seconds, and whether it only decoded."""

    calibrate: Callable[[Sequence[Timing]], None]
    predicted_s: Callable[[Workload], float | None]
    learn: Callable[[Workload, float, bool], None]


def fitted(padded_size: PaddedSize | None, without: str | None = None) -> Candidate:
    """The service's predictor. without: one of FEATURES, which it does not get."""
    iteration_time = IterationTime(padded_size) if without is None else _Without(padded_size, FEATURES.index(without))

    def calibrate(timings: Sequence[Timing]) -> None:
        for work, seconds in timings:
            iteration_time.calibrate(work, seconds)
        iteration_time.fit()

    def learn(work: Workload, seconds: float, is_decode: bool) -> None:
        iteration_time.observe(work, seconds, is_decode=is_decode)

    return Candidate(calibrate, iteration_time.predicted_s, learn)


def averaging() -> Candidate:
    """The moving average, as the simple counterpart."""
    average = MovingAverage()

    def calibrate(timings: Sequence[Timing]) -> None:
        for work, seconds in timings:
            average.observe(work, seconds)

    return Candidate(calibrate, average.predicted_s, lambda work, seconds, _: average.observe(work, seconds))


def errors_of(candidate: Candidate, calibration: Sequence[Timing], traffic: Sequence[Timing]) -> tuple[Errors, Errors]:
    """Errors on iterations with prompts, and on decode-only ones. Of the latter only every DECODE_EVERY-th is learned
    from, as in the service."""
    candidate.calibrate(calibration)
    with_prompts, decodes = list[float](), list[float]()
    for work, seconds in traffic:
        is_decode = not work.num_prompts
        predicted_s = candidate.predicted_s(work)
        if predicted_s is not None:
            (decodes if is_decode else with_prompts).append(predicted_s / seconds - 1)
        if not is_decode or len(decodes) % DECODE_EVERY == 0:
            candidate.learn(work, seconds, is_decode)
    return Errors.of(with_prompts), Errors.of(decodes)


class RecordingTime(IterationTime):
    """Keeps the timings that it is calibrated with."""

    def __init__(self, padded_size: PaddedSize | None) -> None:
        super().__init__(padded_size)
        self.recorded: list[Timing] = []

    def calibrate(self, workload: Workload, seconds: float) -> None:
        """See `service/prediction/iteration_time.py`."""
        super().calibrate(workload, seconds)
        self.recorded.append((workload, seconds))


class _Without(IterationTime):
    def __init__(self, padded_size: PaddedSize | None, index: int) -> None:
        super().__init__(padded_size)
        self._index = index

    def features(self, workload: Workload, size: StepSize) -> tuple[float, ...]:
        """See `service/prediction/iteration_time.py`."""
        values = super().features(workload, size)
        return (*values[: self._index], 0.0, *values[self._index + 1 :])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
