"""The composition root: every object is made here, once, and joined. Imported by nobody but the command line."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import uvloop
from prometheus_client import CollectorRegistry

from service.api.app import create_app
from service.api.serving_state import GenerationDefaults, ServedModel, ServingState
from service.bench.options import LatencyOptions, ThroughputOptions
from service.config import SchedulerConfig
from service.core.clock import MonotonicClock
from service.core.host_times import host_table
from service.core.stats import EngineSnapshot
from service.core.version import distribution_version
from service.engine.async_engine import AsyncEngine
from service.engine.calibration import calibrate
from service.engine.engine import Engine
from service.engine.ports import Executor
from service.errors import ConfigError
from service.http_server import HttpServer
from service.interpreter import settle, unsettle
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.metrics.event_loop_lag import watch_event_loop
from service.metrics.host_seconds import HostSeconds
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import LiveGauges
from service.metrics.recorder import Recorder
from service.metrics.vllm_names import VllmNames
from service.model_folder import resolve_model_folder
from service.scheduler.admission import Admission, OnDemandAdmission
from service.scheduler.chunk_budget import ChunkBudget, FixedBudget, InterTokenTarget
from service.scheduler.fairness import Fair
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.history import History
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.iteration_time import IterationTime
from service.scheduler.memory_forecast import ForecastAdmission, ReserveAdmission
from service.scheduler.preemption import AdaptivePreemption, AlwaysRecompute, AlwaysSwap, Preemption
from service.scheduler.preemption_cost import PreemptionCost
from service.scheduler.priority import ByPriority
from service.scheduler.recovery_ledger import RecoveryLedger
from service.scheduler.scheduling_policy import SchedulingPolicy
from service.scheduler.swap_time import SwapTime
from service.scheduler.token_shares import TokenShares
from service.settings import Settings
from service.shutdown import Shutdown
from service.structured.grammar_compiler import GrammarCompiler
from service.structured.token_bitmask import TokenBitmask
from service.structured.vocabulary import vocabulary_of
from service.text.chat_template import ChatTemplate, load_chat_template
from service.text.dummy_tokenizer import dummy_tokenizer
from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from loadtest.workload import Workload
    from service.bench.model_bench import BenchTarget
    from service.runner.load import LoadedModel

logger = logging.getLogger("headrace")

DEFAULT_BUDGET_ON_GPU = 2048
DEFAULT_BUDGET_ON_CPU = 512
"""Tokens an iteration: what a device computes in some tens of milliseconds, so that prompts do not stall decodes."""

FEW_PROMPTS = 8
"""Of a throughput benchmark on a CPU."""

PREFIX_ENTRY_TOKENS = 16
"""Smaller blocks enter the prefix cache in groups of so many tokens: each entry costs a digest."""

_T = TypeVar("_T")


def serve(settings: Settings, stand_in: Executor | None = None) -> int:
    """Serve until a signal or a fault; returns the process's exit status.

    stand_in: computes in the loaded model's place, for measurements of everything else.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logger.info("headrace %s, model %s", distribution_version(), settings.model)
    changed = settings.non_default()
    logger.info("settings: %s", ", ".join(f"{k}={v}" for k, v in changed.items()) or "all at their defaults")
    try:
        status = uvloop.run(_Service(settings, stand_in).run())
    except ConfigError as fault:
        logger.critical("%s", fault)
        status = 1
    unsettle()
    if threading.active_count() > 1:
        # A thread that is still loading, or stuck on the device, would crash in the interpreter's clean-up.
        logging.shutdown()
        os._exit(status)
    return status


def bench(settings: Settings, options: LatencyOptions | ThroughputOptions) -> int:
    """Measure a model through the engine that `serve` would run, without HTTP; returns the process's exit status.

    Raises ConfigError.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    from loadtest.workload import draw
    from service.bench.model_bench import bench_latency, bench_throughput

    workload = _workload_of_lengths(options.workload) if isinstance(options, ThroughputOptions) else None
    target = _Service(settings).bench_target()
    settle()
    try:
        if isinstance(options, LatencyOptions):
            bench_latency(target, options)
        elif workload is not None:
            num_prompts = options.num_prompts or (workload.num_requests if target.is_gpu else FEW_PROMPTS)
            requests = draw(workload, num_prompts, settings.seed)
            bench_throughput(target, workload.name, [(r.prompt_len, r.output_len) for r in requests])
    finally:
        unsettle()
    return 0


def _workload_of_lengths(name: str) -> Workload:
    """Raises ConfigError if there is none of that name, or if it is more than the lengths of its requests."""
    from loadtest.workload import named

    try:
        workload = named(name)
    except ValueError as fault:
        raise ConfigError(f"workload: {fault}") from None
    if workload.shared_prefix or workload.conversation or workload.tools:
        raise ConfigError(f"workload: {name!r} needs a server; the benchmark has prompts of their own, and no turns")
    return workload


class _Service:
    """One run of the process: listen, load, serve, drain."""

    def __init__(self, settings: Settings, stand_in: Executor | None = None) -> None:
        self._settings = settings
        self._stand_in = stand_in
        self._started_s = self._ready_s = time.monotonic()
        self._ready_process_s = time.process_time()
        self._clock = MonotonicClock()
        self._shutdown = Shutdown()
        self._engine: AsyncEngine | None = None
        self._registry = CollectorRegistry()
        self._recorder = self._make_recorder()
        self._state = ServingState()
        app = create_app(
            self._state,
            settings.api_config(),
            self._recorder,
            self._registry,
            access_log=settings.access_log,
        )
        self._server = HttpServer(app, settings.host, settings.port, settings.connection_limits())

    async def run(self) -> int:
        self._shutdown.listen()
        url = self._server.bind()
        serving = asyncio.create_task(self._server.serve_forever())
        serving.add_done_callback(lambda _: self._on_server_end())
        loading = asyncio.create_task(self._load())
        watching = asyncio.create_task(watch_event_loop(self._recorder))
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
            watching.cancel()
            if self._settings.profile_host:
                print(self._host_profile(), file=sys.stderr, flush=True)
        return int(self._shutdown.status)

    def _host_profile(self) -> str:
        """Of the time since the model was ready."""
        wall_s, process_s = time.monotonic() - self._ready_s, time.process_time() - self._ready_process_s
        return host_table(self._recorder.times, process_s, wall_s, self._recorder.num_generated)

    def bench_target(self) -> BenchTarget:
        """The engine as it would be served, loaded in this thread. Raises ConfigError."""
        from service.bench.device_limits import measure_device
        from service.bench.model_bench import BenchTarget
        from service.bench.model_limits import ModelCosts

        parts = self._load_parts()
        loaded, block_size = parts.loaded, self._settings.block_size
        engine, _ = self._make_engine(parts)
        itemsize = 2 if loaded.dtype == "bfloat16" else 4
        kv_token_bytes = loaded.block_bytes // block_size
        return BenchTarget(
            engine=engine,
            costs=ModelCosts.of(loaded.model_config, loaded.memory.weights_bytes, kv_token_bytes, itemsize),
            limits=measure_device(loaded.device, loaded.dtype),
            vocab_size=loaded.model_config.vocab_size,
            max_model_len=loaded.max_model_len,
            max_num_seqs=parts.scheduler.max_num_seqs,
            kv_tokens=loaded.num_blocks * block_size,
            is_gpu=loaded.device != "cpu",
            facts={
                "model": self._settings.public_model_name(),
                "architecture": loaded.model_config.architecture,
                "dtype": loaded.dtype,
                "device": loaded.device,
                "headrace": distribution_version(),
                "settings": ", ".join(f"{k}={v}" for k, v in self._settings.non_default().items() if k != "model"),
            },
        )

    def _make_recorder(self) -> Recorder:
        instruments = Instruments(self._registry)
        recorder = Recorder(instruments)
        self._registry.register(HostSeconds(recorder.times))
        self._registry.register(LiveGauges(self._snapshot))
        if self._settings.metrics_compat == "vllm":
            name = self._settings.api_config().served_model_names[0]
            self._registry.register(VllmNames(instruments, self._snapshot, name))
        recorder.record_policies(self._settings.policies())
        return recorder

    def _snapshot(self) -> EngineSnapshot | None:
        """Any thread: a scrape may ask while the model still loads."""
        return None if self._engine is None else self._engine.snapshot

    async def _load(self) -> None:
        try:
            parts = await _in_daemon_thread(self._load_parts)
        except BaseException:
            self._state.set_failed()
            raise
        engine, blocks = self._make_engine(parts)
        self._engine = AsyncEngine(
            engine,
            blocks,
            parts.scheduler,
            self._clock,
            self._on_engine_death,
            stream_interval_s=self._settings.stream_interval_ms / 1e3,
        )
        self._engine.start()
        self._state.set_ready(self._served_model(parts, self._engine))
        self._ready_s, self._ready_process_s = time.monotonic(), time.process_time()
        self._recorder.record_startup("total", self._ready_s - self._started_s)
        settle()

    def _load_parts(self) -> _Parts:
        started_s = time.monotonic()
        # Not imported above: torch takes seconds, and HTTP already answers 503 meanwhile.
        from service.runner.device import choose_device
        from service.runner.load import load_executor

        self._recorder.record_startup("imports", time.monotonic() - started_s)
        settings, source = self._settings, self._settings.model_source()
        folder = resolve_model_folder(source.model, source.revision)
        text_folder = folder if source.tokenizer is None else resolve_model_folder(source.tokenizer, None)
        template = load_chat_template(text_folder, source.chat_template)
        on_gpu = choose_device(source.device).type == "cuda"
        scheduler = settings.scheduler_config(DEFAULT_BUDGET_ON_GPU if on_gpu else DEFAULT_BUDGET_ON_CPU)
        started_s = time.monotonic()
        loaded = load_executor(
            source,
            folder,
            settings.cache_config(),
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
            _ProgressLog(),
            enforce_eager=settings.enforce_eager,
        )
        self._recorder.record_startup("model", time.monotonic() - started_s)
        if source.load_format == "dummy" and not (text_folder / "tokenizer.json").is_file():
            tokenizer = dummy_tokenizer(loaded.model_config.vocab_size)
        else:
            tokenizer = Tokenizer.from_folder(text_folder)
        return _Parts(loaded, tokenizer, template, scheduler, self._make_cost(loaded, scheduler))

    def _make_engine(self, parts: _Parts) -> tuple[Engine, BlockManager]:
        loaded, config = parts.loaded, parts.scheduler
        block_size = self._settings.block_size
        per_entry = max(1, PREFIX_ENTRY_TOKENS // block_size)
        cache = ChainedPrefixCache(block_size, per_entry) if self._settings.enable_prefix_caching else NoPrefixCache()
        blocks = BlockManager(loaded.num_blocks, block_size, cache, loaded.num_host_blocks)
        logger.info("memory of %s: %s", loaded.device, loaded.memory)
        num_tokens = loaded.num_blocks * block_size
        logger.info(
            "%s on %s (%s, %d threads); KV cache: %d tokens in %d blocks of %d (%.1f MiB);"
            " room for %d sequences of the full context of %d tokens; %d sequences and %d tokens an iteration",
            loaded.model_config.architecture,
            loaded.device,
            loaded.dtype,
            loaded.num_threads,
            num_tokens,
            loaded.num_blocks,
            block_size,
            loaded.num_blocks * loaded.block_bytes / 2**20,
            num_tokens // loaded.max_model_len,
            loaded.max_model_len,
            config.max_num_seqs,
            config.max_num_batched_tokens,
        )
        history = History()
        scheduler = IterationScheduler(
            blocks,
            self._make_admission(int(config.watermark * loaded.num_blocks), history),
            self._make_policy(history),
            self._make_preemption(),
            RecoveryLedger(parts.cost),
            self._make_chunk_budget(parts.cost.iteration_time, config.max_num_batched_tokens),
            history,
            self._clock,
            max_num_seqs=config.max_num_seqs,
            max_preemptions=config.max_preemptions,
        )
        overlap = self._settings.overlap
        if overlap is None:
            overlap = loaded.device != "cpu"  # on a CPU the iteration itself holds the cores
        masker = TokenBitmask(config.max_num_seqs, loaded.model_config.vocab_size, loaded.generation.eos_token_ids)
        executor = self._stand_in or loaded.runner
        engine = Engine(scheduler, executor, self._recorder, self._clock, overlap=overlap, masker=masker)
        return engine, blocks

    def _make_policy(self, history: History) -> SchedulingPolicy:
        match self._settings.scheduling_policy:
            case "fcfs":
                return FirstComeFirstServed()
            case "priority":
                return ByPriority()
            case "fair":
                return Fair()
            case "shares":
                return TokenShares(history)

    def _make_preemption(self) -> Preemption:
        match self._settings.preemption:
            case "recompute":
                return AlwaysRecompute()
            case "swap":
                return AlwaysSwap()
            case "adaptive":
                return AdaptivePreemption()

    def _make_cost(self, loaded: LoadedModel, scheduler: SchedulerConfig) -> PreemptionCost:
        """The predictors; timed now if something depends on them from the first request on, else learnt on the way."""
        iteration_time, swap_time = IterationTime(), SwapTime()
        max_tokens = scheduler.max_num_batched_tokens
        if self._settings.preemption == "adaptive" or self._settings.inter_token_target_ms is not None:
            started_s = time.monotonic()
            for to_host, num_blocks, seconds in loaded.runner.measure_swap():
                swap_time.observe(to_host=to_host, num_blocks=num_blocks, seconds=seconds)
            calibrate(
                loaded.runner,
                iteration_time,
                self._clock,
                num_blocks=loaded.num_blocks,
                block_size=self._settings.block_size,
                max_tokens=min(max_tokens, loaded.max_model_len // 2),
            )
            self._recorder.record_startup("calibration", time.monotonic() - started_s)
        return PreemptionCost(iteration_time, swap_time, max_tokens)

    def _make_chunk_budget(self, iteration_time: IterationTime, max_num_batched_tokens: int) -> ChunkBudget:
        target_ms = self._settings.inter_token_target_ms
        if target_ms is None:
            return FixedBudget(max_num_batched_tokens)
        return InterTokenTarget(iteration_time, target_ms / 1000, max_num_batched_tokens)

    def _make_admission(self, watermark_blocks: int, history: History) -> Admission:
        match self._settings.admission_policy:
            case "on-demand":
                return OnDemandAdmission(watermark_blocks)
            case "reserve":
                return ReserveAdmission()
            case "forecast":
                return ForecastAdmission(history)

    def _served_model(self, parts: _Parts, engine: AsyncEngine) -> ServedModel:
        loaded, generation = parts.loaded, parts.loaded.generation
        return ServedModel(
            engine=engine,
            tokenizer=parts.tokenizer,
            chat_template=parts.template,
            root=self._settings.public_model_name(),
            created=int(time.time()),
            max_model_len=min(loaded.max_model_len, loaded.num_blocks * self._settings.block_size),
            vocab_size=loaded.model_config.vocab_size,
            eos_token_ids=generation.eos_token_ids,
            defaults=GenerationDefaults(
                temperature=1.0 if generation.temperature is None else generation.temperature,
                top_p=1.0 if generation.top_p is None else generation.top_p,
                top_k=0 if generation.top_k is None else generation.top_k,
                min_p=0.0 if generation.min_p is None else generation.min_p,
                repetition_penalty=1.0 if generation.repetition_penalty is None else generation.repetition_penalty,
                heeds_priority=self._settings.scheduling_policy == "priority",
            ),
            build={
                "model": self._settings.public_model_name(),
                "revision": self._settings.revision or "none",
                "load_format": self._settings.load_format,
                "weights": loaded.weights,
                "architecture": loaded.model_config.architecture,
                "dtype": str(loaded.dtype),
                "device": str(loaded.device),
                "headrace": distribution_version(),
            },
            grammars=GrammarCompiler(
                partial(vocabulary_of, parts.tokenizer, loaded.model_config.vocab_size, generation.eos_token_ids)
            ),
            clock=self._clock,
        )

    def _on_server_end(self) -> None:
        if not self._shutdown.is_requested:
            self._shutdown.fail("the HTTP server has stopped")

    def _on_engine_death(self, fault: BaseException) -> None:
        self._state.set_failed()
        self._shutdown.fail(f"the engine has stopped: {fault}")

    async def _drain(self) -> None:
        self._state.set_draining()
        if self._engine is None:
            return
        draining = asyncio.create_task(self._engine.drain(self._settings.shutdown_timeout))
        hurrying = asyncio.create_task(self._shutdown.hurry())
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not draining.done():
            draining.cancel()
            await self._engine.drain(0.0)


@dataclass(frozen=True, slots=True)
class _Parts:
    loaded: LoadedModel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    scheduler: SchedulerConfig
    cost: PreemptionCost


class _ProgressLog:
    """Logs how far loading is, at most every two seconds and at the end of each phase."""

    def __init__(self) -> None:
        self._logged_s = 0.0

    def __call__(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if done_bytes >= total_bytes or now_s - self._logged_s > 2.0:
            self._logged_s = now_s
            logger.info("loading %s: %.0f of %.0f MB", phase, done_bytes / 1e6, total_bytes / 1e6)


async def _in_daemon_thread(function: Callable[[], _T]) -> _T:
    """The function's result. Unlike a pool's, the thread does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, fault: BaseException | None) -> None:
        if future.done():
            return
        if fault is not None:
            future.set_exception(fault)
        else:
            future.set_result(cast(_T, result))

    def work() -> None:
        try:
            result = function()
        except BaseException as fault:
            loop.call_soon_threadsafe(settle, None, fault)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    threading.Thread(target=work, name="load", daemon=True).start()
    return await future
