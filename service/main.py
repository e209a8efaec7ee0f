"""`headrace serve`: one run of the process. Listen, load, serve, drain. Imported by nobody but the command line."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import uvloop
from prometheus_client import CollectorRegistry

from service.api.app import create_app
from service.api.request_log import log_exchange
from service.api.serving_state import ServingState
from service.composition.early_compiling import end_compiling_early
from service.composition.engine_assembly import make_engine
from service.composition.finetuning import make_fine_tuning
from service.composition.model_parts import load_model_parts
from service.composition.ranks import make_ranks
from service.composition.served_model import make_adapters, make_served_model
from service.composition.storage import make_storage
from service.composition.tracing import make_spans
from service.config import ConnectionLimits
from service.core.clock import MonotonicClock
from service.core.host_times import host_table
from service.core.stats import EngineSnapshot
from service.core.version import distribution_version
from service.engine.async_engine import STUCK_AFTER_S, AsyncEngine
from service.engine.ports import Executor
from service.engine.stream_intervals import FixedInterval, IntervalByLoad, StreamInterval
from service.errors import ConfigError, ServerError, Unavailable
from service.finetune.job import JobStatus
from service.finetune.job_runner import JobRunner
from service.http.server import HttpServer
from service.metrics.event_loop_lag import watch_event_loop
from service.metrics.host_seconds import HostSeconds
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import LiveGauges
from service.metrics.load_log import LoadLog, log_load
from service.metrics.log_loss import LogLoss
from service.metrics.process_state import ProcessState
from service.metrics.rank_metrics import RankMetrics
from service.metrics.recorder import Recorder
from service.metrics.vllm_names import VllmNames
from service.process.daemon_thread import in_daemon_thread
from service.process.early_signals import end_at_signals
from service.process.interpreter import settled
from service.process.log_format import make_formatter
from service.process.log_writer import LogWriter
from service.process.open_files import connections_allowed
from service.process.shutdown import ExitStatus, Shutdown
from service.process.watchdog import HangGuard, watch_for_hangs
from service.settings.settings import Settings

logger = logging.getLogger("headrace")

TO_STOP_AT_ONCE_S = 0.1
"""When there is no more time to be polite, the iteration that runs may take so long to end; its requests end anyway."""


def serve(settings: Settings, stand_in: Executor | None = None) -> int:
    """Serve until a signal or a fault; returns the process's exit status.

    stand_in: computes in the loaded model's place, for measurements of everything else.
    """
    with LogWriter() as log:
        log.setFormatter(make_formatter(settings.log_format, is_terminal=sys.stderr.isatty()))
        logging.basicConfig(level=settings.log_level.upper(), handlers=[log])
        status = _run(settings, stand_in, log)
        end_at_signals(status)
    if threading.active_count() > 1 or settings.parallel_config().num_ranks > 1:
        # A thread that is still loading, or stuck on the device or in the log, would crash in the interpreter's
        # clean-up, or keep it waiting; and so might communicators, whose other ends are gone.
        os._exit(status)
    return status


def _run(settings: Settings, stand_in: Executor | None, log: LogWriter) -> int:
    logger.info("headrace %s, model %s", distribution_version(), settings.model)
    changed = settings.non_default()
    logger.info("settings: %s", ", ".join(f"{k}={v}" for k, v in changed.items()) or "all at their defaults")
    try:
        with ExitStack() as at_end:
            return uvloop.run(_Service(settings, stand_in, at_end, lambda: log.num_lost).run())
    except ConfigError as fault:
        logger.critical("%s", fault)
    except Exception:  # a defect of ours: told in the log, which has to be written before the end
        logger.critical("the service has failed", exc_info=True)
    return int(ExitStatus.FAULT)


class _Service:
    """What lives as long as the process: the app and its server, metrics, the engine once the model is loaded.

    at_end: what is to be undone when the event loop has ended. num_log_lines_lost: since the start.
    """

    def __init__(
        self, settings: Settings, stand_in: Executor | None, at_end: ExitStack, num_log_lines_lost: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._stand_in = stand_in
        self._at_end = at_end
        self._started_s = self._ready_s = time.monotonic()
        self._ready_process_s = time.process_time()
        self._clock = MonotonicClock()
        self._shutdown = Shutdown()
        self._engine: AsyncEngine | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._registry = CollectorRegistry()
        self._ranks = make_ranks(settings.parallel_config(), settings.node_config())
        self._registry.register(LogLoss(num_log_lines_lost))
        self._instruments = Instruments(self._registry)
        self._recorder = self._make_recorder(self._instruments)
        self._state = ServingState()
        self._storage = make_storage(settings)
        self._jobs: JobRunner | None = None
        app = create_app(
            self._state,
            settings.api_config(),
            self._recorder,
            self._registry,
            self._storage,
            watchers=[*([log_exchange] if settings.access_log else []), *make_spans(settings, self._clock, at_end)],
        )
        self._server = HttpServer(app, settings.listen_address(), self._connection_limits())

    async def run(self) -> int:
        self._shutdown.listen()
        self._start_ranks()
        url = self._server.bind()
        serving = asyncio.create_task(self._server.serve_forever())
        serving.add_done_callback(lambda _: self._on_server_end())
        loading = asyncio.create_task(self._load())
        watching = [asyncio.create_task(work) for work in self._watch()]
        ending = asyncio.create_task(self._shutdown.requested())
        await asyncio.wait({loading, ending}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if loading.done():
                loading.result()
                logger.info("ready at %s after %.1f s", url, time.monotonic() - self._started_s)
                await ending
        finally:
            loading.cancel()
            await self._drain()
            self._server.finish()
            await asyncio.wait({serving})
            for task in watching:
                task.cancel()
            if self._settings.profile_host:
                print(self._host_profile(), file=sys.stderr, flush=True)
        return int(self._shutdown.status)

    async def _load(self) -> None:
        settings, recorder, clock = self._settings, self._recorder, self._clock
        try:
            parts = await in_daemon_thread(lambda: load_model_parts(settings, recorder, clock, self._ranks), "load")
        except BaseException:
            self._state.set_failed()
            raise
        finally:
            end_compiling_early()
        engine, blocks = make_engine(settings, parts, recorder, clock, self._stand_in, self._at_end)
        # A stand-in leaves the host's cores alone, as a GPU does.
        is_gpu = parts.loaded.device != "cpu" or self._stand_in is not None
        hangs_after_s = settings.hangs_after_s(is_gpu=is_gpu)
        self._engine = AsyncEngine(
            engine,
            blocks,
            parts.scheduler,
            clock,
            self._on_engine_death,
            stuck_after_s=min(STUCK_AFTER_S, hangs_after_s / 2),  # /health tells before the process ends
            stream_interval=self._stream_interval(),
        )
        # Before the engine's thread begins: a collection might come into a CUDA graph that it captures while idle.
        self._at_end.enter_context(settled(is_gpu=is_gpu))
        self._engine.start()
        self._watchdog = asyncio.create_task(watch_for_hangs(self._engine, hangs_after_s, self._on_hang, HangGuard()))
        adapters = make_adapters(settings, parts, self._engine, recorder)
        fine_tuning = None
        if settings.enable_finetuning and adapters is not None and self._stand_in is None:
            fine_tuning, self._jobs = make_fine_tuning(settings, parts, self._engine, adapters, self._storage, recorder)
            self._jobs.start()
        self._state.set_ready(make_served_model(settings, parts, self._engine, blocks, adapters, fine_tuning, clock))
        self._ready_s, self._ready_process_s = time.monotonic(), time.process_time()
        recorder.record_startup("total", self._ready_s - self._started_s)

    def _start_ranks(self) -> None:
        """On the main thread, with which they end. They are told to when this one has drained, and its loop ended."""
        loop = asyncio.get_running_loop()

        def tell(reason: str) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process ends already
                loop.call_soon_threadsafe(self._on_rank_lost, reason)

        def leave(reason: str) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._shutdown.request, reason)

        self._at_end.callback(self._ranks.close)
        self._ranks.start(tell, leave)

    async def _drain(self) -> None:
        if self._engine is not None and self._settings.shutdown_delay:
            self._state.announce_end()
            logger.info(
                "/ready is 503; requests are still taken for %g s, while load balancers notice",
                self._settings.shutdown_delay,
            )
            forced = asyncio.create_task(self._shutdown.forced())  # at a fault it is, already
            await asyncio.wait({forced}, timeout=self._settings.shutdown_delay)
            forced.cancel()
        self._state.set_draining()
        if self._engine is None:
            return
        closing = asyncio.create_task(self._close_jobs())
        draining = asyncio.create_task(self._engine.drain(self._settings.shutdown_timeout))
        forced = asyncio.create_task(self._shutdown.forced())
        await asyncio.wait({draining, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not draining.done():
            draining.cancel()
            await asyncio.wait({asyncio.create_task(self._engine.drain(0.0))}, timeout=TO_STOP_AT_ONCE_S)
            self._engine.give_up(Unavailable("The server is shutting down.", code="shutting_down"))
        await closing

    async def _close_jobs(self) -> None:
        if self._jobs is not None:
            await self._jobs.close()

    def _watch(self) -> Iterator[Coroutine[None, None, None]]:
        yield watch_event_loop(self._recorder)
        if self._settings.log_load_every:
            yield log_load(LoadLog(self._instruments, self._snapshot), self._settings.log_load_every)

    def _on_server_end(self) -> None:
        if not (self._shutdown.is_requested or self._server.should_exit):
            self._shutdown.fail("the HTTP server has stopped")

    def _on_engine_death(self, fault: BaseException) -> None:
        self._state.set_failed()
        self._shutdown.fail(f"the engine has stopped: {fault}")

    def _on_rank_lost(self, reason: str) -> None:
        self._state.set_failed()
        if self._engine is not None:
            self._engine.give_up(ServerError("The server has lost a device."))
        self._shutdown.fail(reason)

    def _on_hang(self, seconds: float) -> None:
        assert self._engine is not None
        self._state.set_failed()
        self._engine.give_up(ServerError("The engine hangs."))
        self._shutdown.fail(f"an iteration has not come to an end for {seconds:.0f} s")

    def _stream_interval(self) -> StreamInterval:
        milliseconds = self._settings.stream_interval_ms
        return IntervalByLoad() if milliseconds is None else FixedInterval(milliseconds / 1e3)

    def _connection_limits(self) -> ConnectionLimits:
        wanted = self._settings.connection_limits()
        allowed = connections_allowed(wanted.max_connections)
        if allowed < wanted.max_connections:
            logger.warning("max-connections is lowered to %d, since open files are limited (ulimit -n)", allowed)
        return replace(wanted, max_connections=allowed)

    def _make_recorder(self, instruments: Instruments) -> Recorder:
        name = self._settings.api_config().served_model_names[0]
        recorder = Recorder(instruments, name)
        self._registry.register(ProcessState())
        self._registry.register(HostSeconds(recorder.times))
        self._registry.register(LiveGauges(self._snapshot))
        self._registry.register(RankMetrics(self._ranks.facts))
        if self._settings.metrics_compat == "vllm":
            self._registry.register(VllmNames(instruments, self._snapshot, name))
        recorder.record_policies(self._settings.policies())
        recorder.record_jobs({status.value: 0 for status in JobStatus})
        return recorder

    def _snapshot(self) -> EngineSnapshot | None:
        """Any thread: a scrape may ask while the model still loads."""
        return None if self._engine is None else self._engine.snapshot

    def _host_profile(self) -> str:
        """The table of host times since the model was ready."""
        wall_s, process_s = time.monotonic() - self._ready_s, time.process_time() - self._ready_process_s
        return host_table(self._recorder.times, process_s, wall_s, self._recorder.num_generated)
