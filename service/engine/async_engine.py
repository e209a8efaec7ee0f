"""The engine as the event loop sees it. The threads meet in `engine_loop.py` (commands) and `streams.py` (events)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from service.config import SchedulerConfig
from service.core.adapter import Adapter
from service.core.clock import Clock
from service.core.events import FinalEvent, Outcome
from service.core.request import Request
from service.core.stats import EngineSnapshot, RequestStats
from service.core.training import Training, TrainingListener
from service.engine.ailment import Ailment, ailment_of
from service.engine.commands import (
    Abort,
    Ask,
    Expire,
    ForgetAdapter,
    ForgetPrefixes,
    StartTraining,
    Stop,
    StopChoice,
    StopTraining,
    Submit,
)
from service.engine.engine import Engine
from service.engine.engine_loop import EngineLoop
from service.engine.live_requests import stats_of_lost
from service.engine.stream_intervals import FixedInterval, StreamInterval
from service.engine.streams import RequestStream, StreamDelivery, StreamPacing
from service.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    RequestError,
    ServerError,
    Unavailable,
)
from service.kvcache.block_manager import BlockManager
from service.scheduler.admission import fits_ever
from service.scheduler.memory_need import num_blocks_at_most

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

MAX_RETRY_AFTER_S = 60.0
STUCK_AFTER_S = 10.0

MAX_SHARED_FACTOR = 4
"""All waiting prompts together may have so many times `max_waiting_tokens` tokens. That limit counts shared prefixes
once, as the prefix cache computes them once; but in host memory every prompt takes its full length."""
_LOOK_EVERY_S = 0.005


class AsyncEngine:
    """Every method belongs to the event-loop thread.

    on_death(fault): called there if the engine's thread dies or events cannot be delivered (a stream with a gap would
    be a wrong answer). By then every live stream has ended with an error, also those of requests still in the inbox.
    stuck_after_s: the engine is unhealthy if an iteration runs longer than this, or requests wait longer while none
    runs. stream_interval: how often a stream's tokens are delivered; None: at once.
    """

    def __init__(
        self,
        engine: Engine,
        blocks: BlockManager,
        config: SchedulerConfig,
        clock: Clock,
        on_death: Callable[[BaseException], None],
        stuck_after_s: float = STUCK_AFTER_S,
        stream_interval: StreamInterval | None = None,
    ) -> None:
        self._blocks = blocks
        self._config = config
        self._clock = clock
        self._stuck_after_s = stuck_after_s
        self._event_loop = asyncio.get_running_loop()
        self._streams: dict[str, RequestStream] = {}
        self._requests: dict[str, Request] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._num_background = 0
        self._last_other_s = -math.inf
        pacing = StreamPacing(self._streams, stream_interval or FixedInterval(0.0), clock)
        self._delivery = StreamDelivery(pacing, clock, self._forget, self._die)
        self._finish_times_s: deque[float] = deque(maxlen=64)
        self._accepting = True
        self._given_up = False
        self._others_ended = asyncio.Event()  # set while no request but background requests is live
        self._others_ended.set()
        self._loop = EngineLoop(
            engine,
            clock,
            publish=self._delivery.publish,
            on_death=lambda fault: self._call_on_loop(self._die, fault),
            stalled_after_s=stuck_after_s,
        )
        self._on_death = on_death

    def start(self) -> None:
        self._loop.start()

    @property
    def snapshot(self) -> EngineSnapshot:
        return self._loop.snapshot

    @property
    def num_live(self) -> int:
        """Requests that were accepted and have not ended."""
        return len(self._streams)

    @property
    def max_num_seqs(self) -> int:
        """The most sequences that one iteration can have."""
        return self._config.max_num_seqs

    @property
    def last_other_s(self) -> float:
        """When a non-background request was last live, on the engine's clock; -inf if there never was one."""
        return self._clock.now_s() if len(self._streams) > self._num_background else self._last_other_s

    def ailment(self) -> Ailment | None:
        """Why a new short request would not be answered; None if it would."""
        if self._given_up:
            return Ailment("stopped", "the engine was given up")
        return ailment_of(self._loop, self._clock.now_s(), self._stuck_after_s)

    @property
    def busy_since_s(self) -> float | None:
        """Since when the engine has made no progress, on its clock: the start of the current iteration, or the time
        since which requests wait and none runs. None while there is nothing to do."""
        stalled_since_s = self._loop.watch.stalled_since_s
        return self._loop.busy_since_s if stalled_since_s is None else stalled_since_s

    def give_up(self, error: RequestError) -> None:
        """The thread is considered lost: accept no more requests, and end every live one with `error` now."""
        self._accepting = False
        self._given_up = True
        self._fail_left(error)

    def check_accepts(self, num_requests: int = 1) -> None:
        """Raise Unavailable or Overloaded if `num_requests` new requests would be refused. Needs no tokenization.

        Raises InvalidRequest if there are more than may ever wait at once, since a retry could not succeed.
        """
        if not self._accepting:
            raise _shutting_down()
        if not self._loop.is_alive:
            raise Unavailable("The engine has stopped.", code="engine_stopped")
        if num_requests > self._config.max_waiting_requests:
            limit = self._config.max_waiting_requests
            raise InvalidRequest(
                f"prompt: {num_requests} prompts in one call; this server takes at most {limit}.", param="prompt"
            )
        queued = self._loop.num_queued()
        if queued.requests + num_requests > self._config.max_waiting_requests:
            limit = self._config.max_waiting_requests
            raise self._overloaded(
                f"{queued.requests} requests are waiting; the limit is {limit} (--max-waiting-requests)"
            )
        limit = self._config.max_waiting_tokens
        if queued.distinct_tokens > limit:
            raise self._overloaded(
                f"{queued.distinct_tokens} prompt tokens are waiting; the limit is {limit} (--max-waiting-tokens)"
            )
        if queued.tokens > MAX_SHARED_FACTOR * limit:
            raise self._overloaded(
                f"{queued.tokens} prompt tokens are waiting, shared prefixes counted for each request; the limit is"
                f" {MAX_SHARED_FACTOR * limit} ({MAX_SHARED_FACTOR} times --max-waiting-tokens)"
            )

    def submit(self, request: Request) -> RequestStream:
        """Accept a checked request. Its stream ends with exactly one FinalEvent.

        Raises ContextLengthExceeded or InvalidRequest if it could never run, Overloaded or Unavailable if not now.
        """
        assert request.request_id not in self._streams
        assert request.adapter is None or self._blocks.adapter_slots.num_slots, "no adapters are served"
        self._check_fits_ever(request)
        self.check_accepts()
        limit_s = self._may_wait_s(request)
        stream = RequestStream()
        self._loop.send(Submit(request))  # first: if it raises, no table has the request. Events come after we return
        self._streams[request.request_id] = stream
        self._requests[request.request_id] = request
        self._num_background += request.is_background
        self._expiries[request.request_id] = self._event_loop.call_later(
            limit_s, self._expire, request.request_id, request.start_within_s or self._config.max_waiting_s
        )
        if not request.is_background:
            self._others_ended.clear()
        return stream

    def abort(self, request_id: str) -> None:
        """End the request within one iteration. Idempotent: nothing happens if it has ended."""
        if request_id in self._streams:
            self._loop.send(Abort(request_id))

    def stop_choice(self, request_id: str, choice_index: int) -> None:
        """End one choice whose text is complete. The caller must ignore tokens of it that still arrive."""
        if request_id in self._streams:
            self._loop.send(StopChoice(request_id, choice_index))

    async def stats_so_far(self, request_ids: Sequence[str]) -> dict[str, RequestStats]:
        """Statistics, by id, of those of these requests that have not ended, taken after the current iteration;
        `finished_s` is when they were taken. Never returns if the engine's thread dies meanwhile: use a timeout."""
        told: asyncio.Future[dict[str, RequestStats]] = self._event_loop.create_future()

        def tell(stats: dict[str, RequestStats]) -> None:
            self._call_on_loop(lambda known: None if told.done() else told.set_result(known), stats)

        self._loop.send(Ask(request_ids, tell))
        return await told

    def forget_prefixes(self) -> None:
        """Clear the prefix cache: requests submitted from now on find nothing of earlier ones."""
        self._loop.send(ForgetPrefixes())

    def forget_adapter(self, adapter: Adapter) -> None:
        """No more requests will come with this adapter: it leaves the device once no live request uses it."""
        self._loop.send(ForgetAdapter(adapter))

    def start_training(self, training: Training, listener: TrainingListener) -> None:
        """Run the training beside the requests. Only one can run at a time: the listener of a second one is told of a
        fault. Raises Unavailable. If the engine's thread is stuck, the listener is not told anything."""
        if not self._accepting:
            raise _shutting_down()
        if not self._loop.is_alive:
            raise Unavailable("The engine has stopped.", code="engine_stopped")
        self._loop.send(StartTraining(training, listener))

    def stop_training(self, training_id: int, *, wants_state: bool = True) -> None:
        """End the training after the layer steps in flight, by default with a snapshot for its listener. Nothing
        happens if it has ended. The same training may be started again."""
        self._loop.send(StopTraining(training_id, wants_state))

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the live ones finish, and fail those that have not after `timeout_s`.

        Nobody waits for background requests, and they can be made again: they go on while others do, and then fail.

        If the engine's thread is stuck, its streams end `stuck_after_s` later; if it was given up, they have ended.
        """
        self._accepting = False
        if self._loop.is_alive and not self._given_up:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._others_ended.wait(), timeout_s)
            error = _shutting_down()
            self._loop.send(Stop(error))
            await self._thread_ended(self._stuck_after_s)
            await asyncio.sleep(0)
            self._fail_left(error)

    async def _thread_ended(self, within_s: float) -> None:
        """Polls for the thread's end: another thread waiting in `join` would itself keep the process from ending."""
        deadline_s = self._event_loop.time() + within_s
        while self._loop.is_alive and self._event_loop.time() < deadline_s:
            await asyncio.sleep(_LOOK_EVERY_S)

    def _check_fits_ever(self, request: Request) -> None:
        if fits_ever(request, self._blocks, self._config.max_num_seqs):
            return
        if request.sampling.num_sequences > self._config.max_num_seqs:
            limit = self._config.max_num_seqs
            name = "n" if request.sampling.beam is None else "beam_width"
            given = request.sampling.num_sequences
            raise InvalidRequest(
                f"{name} must be at most {limit} on this server (--max-num-seqs), got {given}.", param=name
            )
        adapter = request.adapter
        needed, total, of_adapter = (
            num_blocks * self._blocks.block_size // self._blocks.num_groups
            for num_blocks in (
                num_blocks_at_most(request, self._blocks),
                self._blocks.pool.num_blocks,
                0 if adapter is None else adapter.num_blocks,
            )
        )
        beside = "" if adapter is None else f" besides the {of_adapter} of the adapter {adapter.name}"
        raise ContextLengthExceeded(
            f"The prompt and max_tokens of all choices need {needed} tokens of KV cache{beside};"
            f" the whole KV cache holds {total}.",
            param="max_tokens",
        )

    def _may_wait_s(self, request: Request) -> float:
        """Seconds that it may wait from now on. Raises Overloaded if its time to start is already over."""
        if request.start_within_s is None:
            return self._config.max_waiting_s
        left_s = request.start_within_s - (self._clock.now_s() - request.arrival_s)
        if left_s <= 0:
            raise self._overloaded(f"The request did not start within {request.start_within_s:g} s")
        return min(left_s, self._config.max_waiting_s)

    def _expire(self, request_id: str, limit_s: float) -> None:
        self._loop.send(
            Expire(
                request_id,
                self._overloaded(f"The request has waited for {limit_s:g} s, which is the limit"),
            )
        )

    def _overloaded(self, message: str) -> Overloaded:
        return Overloaded(f"{message}. Try again later.", retry_after_s=self._seconds_to_drain())

    def _seconds_to_drain(self) -> float:
        times_s = self._finish_times_s
        if len(times_s) < 2:
            return 1.0
        per_request_s = (self._clock.now_s() - times_s[0]) / len(times_s)
        return min(max(per_request_s * self._loop.num_queued().requests, 1.0), MAX_RETRY_AFTER_S)

    def _forget(self, request_ids: Sequence[str], now_s: float) -> None:
        """Remove requests that have ended."""
        for request_id in request_ids:
            del self._streams[request_id]
            if self._requests.pop(request_id).is_background:
                self._num_background -= 1
            else:
                self._last_other_s = now_s
            self._expiries.pop(request_id).cancel()
            self._finish_times_s.append(now_s)
        if len(self._streams) == self._num_background:
            self._others_ended.set()

    def _die(self, fault: BaseException) -> None:
        """Give up after a fault. Only the first call has an effect, since a fault may repeat."""
        if self._given_up:
            return
        error = ServerError("The engine has stopped after a fault.")
        try:
            self.give_up(error)
            self._loop.send(Stop(error))
        except Exception:  # the process ends anyway, and closes the streams' connections
            logger.exception("streams could not be ended")
        self._on_death(fault)

    def _fail_left(self, error: RequestError) -> None:
        """End the streams that the thread will not end: it is stuck, or died with their requests in its inbox."""
        now_s = self._clock.now_s()
        self._delivery.deliver(
            [
                (request_id, FinalEvent(Outcome.FAILED, stats_of_lost(request, now_s), error))
                for request_id, request in self._requests.items()
            ]
        )

    def _call_on_loop(self, function: Callable[[_T], None], argument: _T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, perhaps just now: no reader is left
            self._event_loop.call_soon_threadsafe(function, argument)


def _shutting_down() -> Unavailable:
    return Unavailable("The server is shutting down.", code="shutting_down")
