"""A training in the engine as the event loop sees it: collects what the engine thread reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from service.core.training import StepReport

MAX_WAITING_STATES = 3
"""Limit of waiting states that must be kept for good; each may take hundreds of megabytes. Beyond it the oldest go."""


@runtime_checkable
class StateOfStep(Protocol):
    """The state of a training after an optimizer step, in host memory."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        ...


class Told(NamedTuple):
    """reports, states: since the last call, in order. is_over: nothing more will come."""

    reports: list[StepReport]
    states: list[StateOfStep]
    is_over: bool
    fault: Exception | None


class TrainingRun:
    """A `TrainingListener`, whose methods run on the engine thread; all other methods: event loop.

    is_kept: whether a state must be kept for good; of the others only the latest one matters.
    """

    def __init__(self, is_kept: Callable[[StateOfStep], bool]) -> None:
        self._is_kept = is_kept
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._reports: list[StepReport] = []
        self._states: list[StateOfStep] = []
        self._is_over = False
        self._fault: Exception | None = None

    def step(self, report: StepReport) -> None:
        self._on_loop(lambda: self._reports.append(report))

    def snapshot(self, state: object) -> None:
        assert isinstance(state, StateOfStep)
        self._on_loop(lambda: self._keep(state))

    def ended(self, fault: Exception | None) -> None:
        self._on_loop(lambda: self._end(fault))

    async def news(self) -> Told:
        """Everything reported since the last call. Waits until there is something, or until it is over."""
        if not self._is_over:
            await self._changed.wait()
        self._changed.clear()
        reports, self._reports = self._reports, []
        states, self._states = self._states, []
        return Told(reports, states, self._is_over, self._fault)

    async def ends(self, within_s: float) -> None:
        """Wait for the end, at most so long (the engine may be stuck). What is reported meanwhile is dropped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not (await self.news()).is_over:
                    pass

    def _keep(self, state: StateOfStep) -> None:
        kept = [each for each in self._states if self._is_kept(each)]
        self._states = [*kept[-MAX_WAITING_STATES:], state]

    def _end(self, fault: Exception | None) -> None:
        self._is_over, self._fault = True, fault

    def _on_loop(self, change: Callable[[], None]) -> None:
        def apply() -> None:
            change()
            self._changed.set()

        with contextlib.suppress(RuntimeError):  # the loop is closed: no listener is left
            self._loop.call_soon_threadsafe(apply)
