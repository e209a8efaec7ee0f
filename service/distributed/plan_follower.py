"""The loop of every rank but rank 0: take rank 0's plans in order and carry out this rank's part."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from service.core.failed_launch import FailedLaunch
from service.core.iteration import IterationPlan, IterationResult
from service.distributed.control_ring import Message, MessageKind, RingReader
from service.distributed.drawn_messages import HeardDraws, NoteDrawn
from service.distributed.integers import IntegerReader
from service.distributed.mask_messages import HeardMasks
from service.distributed.plan_codec import PlanDecoder
from service.distributed.rank_status import Fact, RankStatuses
from service.distributed.told_captures import Capture
from service.engine.ports import Executor, PendingIteration

logger = logging.getLogger(__name__)

IDLE_LOOK_S = 1.0
_BUSY_LOOK_S = 0.0002
"""How often it looks whether the device has finished launched plans."""


class RankUseless(Exception):
    """Raised by an iteration that leaves this rank's state different from the others'; the rank cannot continue."""


class PlanFollower:
    """Carries out plans. It decides nothing and waits for no result; it notes a plan as done when the device has
    computed it.

    executor: this rank's part. on_idle: called at most once in IDLE_LOOK_S while no message comes. drop_adapters: gets
    the ids that no later plan names. note_drawn: gets the ids that the last stage samples; None if this rank does not
    need them. capture: captures the CUDA graphs that later plans use.
    """

    def __init__(
        self,
        rank: int,
        reader: RingReader,
        executor: Executor,
        statuses: RankStatuses,
        on_idle: Callable[[], None] = lambda: None,
        drop_adapters: Callable[[Sequence[int]], None] = lambda adapter_ids: None,
        note_drawn: NoteDrawn | None = None,
        capture: Callable[[Capture], None] = lambda capture: None,
    ) -> None:
        self._rank = rank
        self._reader = reader
        self._executor = executor
        self._statuses = statuses
        self._on_idle = on_idle
        self._drop_adapters = drop_adapters
        self._capture = capture
        self._decoder = PlanDecoder(self._await_masks)
        self._draws = None if note_drawn is None else HeardDraws(note_drawn)
        self._awaiting_masks: deque[HeardMasks] = deque()
        self._ahead: deque[Message] = deque()  # read while waiting for masks
        self._launched: deque[PendingIteration] = deque()
        self._num_launched = self._num_done = 0

    def follow(self) -> None:
        """Until the process ends.

        Raises what this rank cannot recover from: a damaged message, a CUDA graph that could not be captured,
        RankUseless.
        """
        while True:
            self.follow_one()

    def follow_one(self) -> None:
        """Take the next message and act on it."""
        if not self._ahead:
            self._read()
        if not self._ahead:  # it was masks, which their plan has now
            return
        message = self._ahead.popleft()
        if message.kind is MessageKind.PLAN:
            started_ns = time.monotonic_ns()
            self._launch(self._decoder.decode(message.payload))
            self._statuses.add(self._rank, Fact.BUSY_NS, time.monotonic_ns() - started_ns)
        elif message.kind is MessageKind.ADAPTERS_DROPPED:
            self._drop_adapters(IntegerReader(message.payload).many())
        elif message.kind is MessageKind.DRAWN and self._draws is not None:
            self._draws.hear(message.payload)
        elif message.kind is MessageKind.CAPTURE:
            self._capture(Capture.from_bytes(message.payload))

    def _await_masks(self, rows: tuple[int, ...]) -> HeardMasks:
        masks = HeardMasks(rows, self._read)
        self._awaiting_masks.append(masks)
        return masks

    def _read(self) -> None:
        """Read the next message. Masks go to their plan; other messages queue."""
        message = self._take()
        if message.kind in (MessageKind.MASKS, MessageKind.MASKS_FAILED):
            self._awaiting_masks.popleft().hear(message)
        else:
            self._ahead.append(message)

    def _launch(self, plan: IterationPlan) -> None:
        self._num_launched += 1
        if self._draws is not None and plan.num_draws:
            self._draws.expect(self._num_launched, plan)
        try:
            pending = self._executor.launch(plan)
        except Exception as fault:
            pending = FailedLaunch(fault)
        self._launched.append(pending)
        self.note_done()

    def _take(self) -> Message:
        """The next message. While it waits, it notes finished plans."""
        started_ns = time.monotonic_ns()
        while (message := self._reader.take(_BUSY_LOOK_S if self._launched else IDLE_LOOK_S)) is None:
            self.note_done()
            if not self._launched:
                self._on_idle()
        now_ns = time.monotonic_ns()
        # The latency leaves out the time in which this rank was busy and did not look.
        self._note_message(now_ns - max(started_ns, message.written_ns))
        self._statuses.add(self._rank, Fact.WAITING_NS, now_ns - started_ns)
        return message

    def _note_message(self, latency_ns: int) -> None:
        self._statuses.add(self._rank, Fact.MESSAGES, 1)
        self._statuses.add(self._rank, Fact.LATENCY_NS, latency_ns)
        if latency_ns > self._statuses.get(self._rank, Fact.MAX_LATENCY_NS):
            self._statuses.set(self._rank, Fact.MAX_LATENCY_NS, latency_ns)

    def note_done(self) -> None:
        """Note finished plans, in launch order."""
        while self._launched and self._launched[0].is_done():
            self._num_done += 1
            try:
                self._note_result(self._launched.popleft().wait())
            except RankUseless:
                raise
            except Exception:
                logger.exception("plan %d failed", self._num_done)
                self._statuses.add(self._rank, Fact.PLANS_FAILED, 1)
                self._statuses.set(self._rank, Fact.LAST_FAILED, self._num_done)
            self._statuses.set(self._rank, Fact.PLANS_DONE, self._num_done)

    def _note_result(self, result: IterationResult) -> None:
        self._statuses.note_computed(self._rank, result.compute_s)
        if result.finished_transfers:
            latest = max(each.transfer_id for each in result.finished_transfers)
            self._statuses.set(self._rank, Fact.TRANSFERS_FINISHED, latest + 1)
