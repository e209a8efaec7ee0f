"""The engine's thread: take commands as late as possible, step, publish; when idle, do idle work, then sleep."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from service.core.clock import Clock
from service.core.stats import EngineSnapshot
from service.engine.commands import Command, Stop, carry_out
from service.engine.engine import Engine
from service.engine.engine_watch import MAX_FAILED_IN_A_ROW, STALLED_AFTER_S, EngineWatch
from service.engine.idle_turns import IDLE_BEFORE_WORK_S, IdleTurns
from service.engine.inbox import Inbox, Known, Queued
from service.engine.outbox import News
from service.errors import RequestError, ServerError

logger = logging.getLogger(__name__)

SNAPSHOT_EVERY_S = 0.5
"""How often the snapshot is renewed while the same decodes go on: only token counts change then."""

LOOK_EVERY_S = 2e-3
"""While a launch is delayed, how often to check whether the iteration in flight ended earlier than predicted."""


class EngineLoop:
    """Commands come in through `send`, events go out through `publish`. Other threads may also read `snapshot`,
    `num_queued`, `busy_since_s` and `watch`; each of these reads one object that is replaced as a whole.

    busy_since_s: when the current turn of the loop began; None while there is nothing to do.

    publish(events): called on the engine thread, at most once per iteration, with all events since the last call: as
        soon as the next iteration is launched, or before that launch is delayed.
    on_death(error): called last on the engine thread if the thread dies of a fault. Requests get a final event before,
        unless the same fault prevents that. Training listeners are always told of the end.
    wait(event, seconds): sleeps until the event is set, at most so long, and returns whether it is set. Used while a
        launch is delayed and during a stall; apart from the engine's waits, the only sleep while there is work.
    stalled_after_s: a stall that lasts longer is logged.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        publish: Callable[[list[News]], None],
        on_death: Callable[[BaseException], None],
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
        stalled_after_s: float = STALLED_AFTER_S,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._publish = publish
        self._on_death = on_death
        self._wait = wait
        self._inbox = Inbox()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = False
        self._known = Known(engine.snapshot(), self._inbox.taken)
        self.busy_since_s: float | None = None
        self.watch = EngineWatch(engine, clock, lambda seconds: wait(self._wake, seconds), stalled_after_s)
        self._idle = IdleTurns(engine, clock, self._wake.is_set)
        self._snapshot_due_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        """Event-loop thread. The command is carried out before the next iteration is decided."""
        self._inbox.send(command)
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end. Returns True if it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def snapshot(self) -> EngineSnapshot:
        """The engine's latest state. Any thread."""
        return self._known.snapshot

    def num_queued(self) -> Queued:
        """Requests that have been submitted and have not started. Event-loop thread."""
        return self._known.queued(self._inbox.sent)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._iterate()
        except BaseException as fault:
            logger.critical("the engine thread has died", exc_info=fault)
            try:
                self._fail_all(ServerError("the engine has stopped after a fault"))
            except Exception:  # perhaps the same fault
                logger.exception("requests could not be ended")
            self._end_trainings()
            self._on_death(fault)
        else:
            self._end_trainings()

    def _iterate(self) -> None:
        if not self._engine.has_work and not self._inbox.commands:
            self._rest()
        elif self._idle.has_more:
            self._idle.use_training(has_commands=bool(self._inbox.commands))
        self._wake.clear()
        self.busy_since_s = self._clock.now_s()
        if self.busy_since_s >= self._idle.catch_up_due_s:
            self._idle.catch_up(self._hand_over)
        self._delay_launch()
        if self._inbox.commands:
            started_s = self._clock.now_s()
            self._take_commands()
            self._note_state()
            self._engine.requests.record_commands(self._clock.now_s() - started_s)
        has_stepped = self._engine.step(self._hand_over)
        if not has_stepped or self.watch.stalled_since_s is not None:
            self.watch.note_stall(goes_on=has_stepped)
        if not self._engine.scheduler.is_steady or self.busy_since_s >= self._snapshot_due_s:
            self._note_state()
            self._snapshot_due_s = self.busy_since_s + SNAPSHOT_EVERY_S
        if not self._engine.has_launched:
            self._hand_over()
        if self._engine.failed.num_in_a_row >= MAX_FAILED_IN_A_ROW or self.watch.failing is not None:
            self._note_failures()

    def _note_failures(self) -> None:
        if self.watch.note_failures():
            self._note_state()
            self._hand_over()

    def _delay_launch(self) -> None:
        """Sleep until the next launch is due, so that the event loop can have the interpreter. Every command wakes this
        up, since a new request may make the launch due earlier."""
        if self._spare_s() > 0.0:
            self._hand_over()
        while (spare_s := self._spare_s()) > 0.0:
            if self._wait(self._wake, min(spare_s, LOOK_EVERY_S)):
                self._wake.clear()

    def _spare_s(self) -> float:
        return self._engine.spare_s(has_arrivals=self._inbox.sent.requests > self._inbox.taken.requests)

    def _rest(self) -> None:
        """Sleep until a command comes. Meanwhile do idle work, which a command interrupts."""
        self.busy_since_s, has_more = None, True
        while not self._wake.wait(IDLE_BEFORE_WORK_S if has_more else self.watch.probe_in_s):
            self.busy_since_s = self._clock.now_s()
            if has_more:
                has_more = self._idle.use_pause()
            else:
                self._note_failures()
            self.busy_since_s = None
        self._idle.note_pause()

    def _end_trainings(self) -> None:
        """The thread is ending: tell the listener of every training."""
        self._engine.training.interrupt(wants_state=False)
        self._inbox.close()

    def _take_commands(self) -> None:
        """Carry out all commands in the inbox."""
        for command in self._inbox.take():
            if isinstance(command, Stop):
                self._stopping = True
                self._fail_all(command.error)
                self._engine.interrupt_training()
            else:
                carry_out(command, self._engine)

    def _fail_all(self, error: RequestError) -> None:
        for request_id in self._engine.requests.request_ids():
            self._engine.requests.fail(request_id, error)
        self._note_state()
        self._hand_over()

    def _note_state(self) -> None:
        """Renew the state that other threads read."""
        self._known = Known(self._engine.snapshot(), self._inbox.taken)

    def _hand_over(self) -> None:
        """Publish the gathered events. Called when this thread is about to wait: while the event loop processes them it
        holds the interpreter, which would delay a launch."""
        events = self._engine.requests.events.take()
        if events:
            self._publish(events)
