"""The real app with the real engine and a scripted executor, behind the real HTTP server in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from service.api.app import create_app
from service.api.http_exchange import HttpWatcher
from service.api.serving_state import GenerationDefaults, ServedModel, ServingState
from service.composition.storage import SCHEMAS
from service.config import ApiConfig, ConnectionLimits, ListenAddress, SchedulerConfig
from service.core.adapter import Adapters
from service.core.clock import MonotonicClock
from service.core.embedding import EmbedderConfig
from service.engine.async_engine import AsyncEngine
from service.engine.engine import Engine
from service.finetune.fine_tuning import FineTuning
from service.http.server import HttpServer
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import LiveGauges
from service.metrics.recorder import Recorder
from service.metrics.vllm_names import VllmNames
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.swap_time import SwapTime
from service.scheduler.admission import OnDemandAdmission
from service.scheduler.background_last import BackgroundLast
from service.scheduler.chunk_budget import FixedBudget
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.history import History
from service.scheduler.iteration_scheduler import IterationScheduler
from service.scheduler.preemption import AlwaysRecompute
from service.scheduler.scheduler_policies import SchedulerPolicies
from service.scheduler.speculation import Speculation
from service.storage.storage import Storage
from service.structured.grammar_compiler import GrammarCompiler
from service.structured.token_bitmask import TokenBitmask
from service.structured.vocabulary import token_table
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from tests.api.scripted_executor import Script, ScriptedExecutor, saying
from tests.text import tiny_tokenizers

Result = TypeVar("Result")

MODEL = "tiny/model"
FOLDER = "/models/tiny"
END_ID = 2
ENDS = frozenset({END_ID})
BLOCK_SIZE = 4
SCHEDULER = SchedulerConfig(
    max_num_seqs=64, max_num_batched_tokens=512, watermark=0.0, max_waiting_requests=64, max_waiting_tokens=100_000
)


@dataclass
class Scene:
    """What a test may set before the server starts. vocab_size: of the model; None: the tokenizer's.

    finds_prefixes: whether there is a prefix cache. added_tokens: the model of `tiny_tokenizers.ADDED_TOKENS` whose
    tokenizer it has. adapters: four of them at once. speculation: None: nobody drafts.
    """

    config: ApiConfig = field(default_factory=lambda: ApiConfig((MODEL, "alias"), model_aliases=(FOLDER,)))
    scheduler: SchedulerConfig = SCHEDULER
    num_blocks: int = 4096
    finds_prefixes: bool = False
    max_model_len: int = 2048
    vocab_size: int | None = None
    takes_deterministic: bool = True
    added_tokens: str | None = None
    chat_template: str | None = tiny_tokenizers.CHAT_TEMPLATE
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    ready: bool = True
    watchers: Sequence[HttpWatcher] = ()
    adapters: Adapters | None = None
    speculation: Speculation | None = None
    embedder: EmbedderConfig | None = None
    storage_bytes: int = 10_000_000
    fine_tuning: Callable[[Storage], FineTuning] | None = None


class RunningServer:
    """Everything a test may look at or turn, from its own thread."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        added = scene.added_tokens
        self.tokenizer = Tokenizer(tiny_tokenizers.with_added(added) if added else tiny_tokenizers.byte_level())
        self.executor = ScriptedExecutor()
        self.reset()
        self.state = ServingState()
        self._data = tempfile.TemporaryDirectory()
        self.storage = Storage(Path(self._data.name) / "data", self.scene.storage_bytes, SCHEMAS)
        self.registry = CollectorRegistry()
        instruments = Instruments(self.registry)
        self.recorder = Recorder(instruments)
        self.registry.register(LiveGauges(lambda: self.engine.snapshot))
        self.registry.register(VllmNames(instruments, lambda: self.engine.snapshot, MODEL))
        self._grammars = GrammarCompiler(partial(token_table, self.tokenizer, self.tokenizer.num_tokens, ENDS))
        self.engine: AsyncEngine
        self.base_url = ""
        self.deaths: list[BaseException] = []
        self._loop: asyncio.AbstractEventLoop
        self._http: HttpServer
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="server")

    def reset(self) -> None:
        """The executor as it was at first."""
        self.executor.reset(saying([END_ID]))

    def say(self, text: str) -> list[int]:
        """From now on every choice says `text` and then ends; returns the ids that it says."""
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), END_ID]
        self.executor.script = saying(ids)
        return ids

    def play(self, script: Script) -> None:
        self.executor.script = script

    def on_loop(self, function: Callable[[], Result]) -> Result:
        """Call on the event-loop thread."""

        async def call() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def wait_for_death(self, seconds: float) -> None:
        """Until the engine's death is told, or for so long."""
        deadline_s = time.monotonic() + seconds
        while not self.deaths and time.monotonic() < deadline_s:
            time.sleep(0.001)

    def drain(self, timeout_s: float) -> None:
        """What the process does at SIGTERM."""
        self.on_loop(self.state.set_draining)
        asyncio.run_coroutine_threadsafe(self.engine.drain(timeout_s), self._loop).result(10)

    def make_ready(self, **changes: Any) -> None:
        """changes: fields of the served model that are to be others."""
        self.on_loop(lambda: self.state.set_ready(replace(self._served_model(), **changes)))

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def check_idle(self, within_s: float = 10) -> None:
        """The after-state check: nothing is left of any request, soon; tests count iterations where that matters."""
        deadline_s = time.monotonic() + within_s
        while (left := self._what_is_left()) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert not left, left

    def check_well(self, within_s: float = 10) -> None:
        """Where a test before has made iterations fail, the next probe finds that they do not any more."""
        deadline_s = time.monotonic() + within_s
        while (ailment := self.engine.ailment()) is not None and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert ailment is None, ailment

    def num_connections(self) -> int:
        return self.on_loop(lambda: len(self._http.server_state.connections))

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def stop(self) -> None:
        self.executor.gate.set()
        self.executor.delay_s = 0.0
        self.on_loop(self._http.finish)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._data.cleanup()

    def _what_is_left(self) -> dict[str, object]:
        snapshot = self.engine.snapshot
        left = {
            "live": len(self.engine._streams),
            "running": snapshot.num_running,
            "waiting": snapshot.num_waiting,
            "blocks": snapshot.used_blocks - snapshot.adapters.num_blocks,
            "tasks": self.on_loop(_request_tasks),
        }
        return {name: value for name, value in left.items() if value}

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_engine()
        self.engine.start()
        if self.scene.ready:
            self.state.set_ready(self._served_model())
        app = create_app(
            self.state,
            self.scene.config,
            self.recorder,
            self.registry,
            self.storage,
            watchers=self.scene.watchers,
        )
        self._http = HttpServer(app, ListenAddress(), self.scene.limits)
        self.base_url = self._http.bind()
        serving = asyncio.create_task(self._http.serve_forever())
        while not self._http.started:
            await asyncio.sleep(0.001)
        self._started.set()
        await serving
        self._grammars.close()
        await self.engine.drain(0.0)

    def _make_engine(self) -> None:
        clock, scheduler = MonotonicClock(), self.scene.scheduler
        prefixes = ChainedPrefixCache(BLOCK_SIZE) if self.scene.finds_prefixes else NoPrefixCache()
        num_slots = 0 if self.scene.adapters is None else 4
        blocks = BlockManager(self.scene.num_blocks, BLOCK_SIZE, prefixes, num_adapter_slots=num_slots)
        iterations = IterationScheduler(
            blocks,
            SchedulerPolicies(
                BackgroundLast(FirstComeFirstServed()),
                OnDemandAdmission(0),
                AlwaysRecompute(),
                FixedBudget(scheduler.max_num_batched_tokens),
                speculation=self.scene.speculation,
            ),
            RecoveryLedger(PreemptionCost(IterationTime(), SwapTime(), scheduler.max_num_batched_tokens)),
            History(),
            clock,
            max_num_seqs=scheduler.max_num_seqs,
            max_preemptions=scheduler.max_preemptions,
        )
        masker = TokenBitmask(scheduler.max_num_seqs, self.tokenizer.num_tokens, ENDS)
        engine = Engine(iterations, self.executor, self.recorder, clock, masker=masker)
        self.engine = AsyncEngine(engine, blocks, scheduler, clock, self._on_death, stuck_after_s=0.5)

    def _on_death(self, fault: BaseException) -> None:
        """As `serve` does, but that the process goes on."""
        self.deaths.append(fault)
        self.state.set_failed()

    def _served_model(self) -> ServedModel:
        template = None if self.scene.chat_template is None else ChatTemplate(self.scene.chat_template, {})
        return ServedModel(
            engine=self.engine,
            tokenizer=self.tokenizer,
            chat_template=template,
            root="tiny-root",
            created=1_700_000_000,
            max_model_len=self.scene.max_model_len,
            vocab_size=self.scene.vocab_size or self.tokenizer.num_tokens,
            eos_token_ids=ENDS,
            defaults=self.scene.defaults,
            build={"dtype": "none"},
            grammars=self._grammars,
            takes_deterministic=self.scene.takes_deterministic,
            adapters=self.scene.adapters,
            embedder=self.scene.embedder,
            fine_tuning=None if self.scene.fine_tuning is None else self.scene.fine_tuning(self.storage),
        )


def _request_tasks() -> int:
    """Tasks of requests: all but the server's own."""
    names = [repr(task.get_coro()) for task in asyncio.all_tasks()]
    own = (
        "RunningServer.",
        "Server.serve",
        "Server.main_loop",
        "LifespanOn",
        "on_loop",
        "_shutdown_watcher",
        "JobRunner.",
    )
    return sum(not any(mark in name for mark in own) for name in names)


@contextlib.contextmanager
def running(scene: Scene | None = None) -> Iterator[RunningServer]:
    """A running server; when the test is over it must be idle again."""
    server = RunningServer(scene or Scene())
    server.start()
    try:
        yield server
        server.executor.gate.set()
        server.check_idle()
    finally:
        server.stop()
