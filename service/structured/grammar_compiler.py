"""Compiles the grammars of requests: each one once, after a trial in another process, with a cache."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

from service.core.grammar import Grammar, GrammarSpec, Reasoning, ThinkingBudget
from service.errors import InvalidRequest, Overloaded
from service.structured.compilation import compile_grammar
from service.structured.compile_fork_server import Trial, TrialLimits
from service.structured.compile_trials import CompileTrials
from service.structured.grammar_errors import grammar_fault
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.reasoning_matcher import ReasoningGrammar, limited
from service.structured.vocabulary import TokenTableMaker, Vocabulary, vocabulary_of_table

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """cache_bytes, num_cached: limits of the cache of compiled grammars; a cached lexer grows in use, to about 70 MB at
    most, which is why the number is limited, too. num_refused: how many costly grammars are remembered, so that sending
    one again costs nothing. num_threads: grammars compiled at once; one of these threads also loads the vocabulary.
    wait_s: the longest wait for a free thread.
    """

    trial: TrialLimits = field(default_factory=TrialLimits)
    cache_bytes: int = 256 * 2**20
    num_cached: int = 64
    num_refused: int = 64
    num_threads: int = 4
    wait_s: float = 5.0


class GrammarCompiler:
    """Implements `Grammars`. Event-loop thread; the vocabulary is loaded at the first request.

    Concurrent requests for the same grammar share one compilation. A trial has limits, so no thread is blocked for
    long; while others wait for a thread, trials get less time.
    """

    def __init__(self, make_table: TokenTableMaker, limits: CompileLimits | None = None) -> None:
        self._make_table = make_table
        self._limits = limits or CompileLimits()
        self._pool = ThreadPoolExecutor(self._limits.num_threads, "grammar")
        self._num_compiling = 0
        self._trials: CompileTrials | None = None
        self._is_closed = False
        self._vocabulary: asyncio.Future[Vocabulary] | None = None
        self._pending: dict[GrammarSpec, asyncio.Future[CompiledGrammar]] = {}
        self._cache: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[GrammarSpec, str] = OrderedDict()
        self.cached_bytes = 0

    async def compile(
        self, spec: GrammarSpec, reasoning: Reasoning = Reasoning.NONE
    ) -> CompiledGrammar | ReasoningGrammar:
        """See `Grammars`."""
        vocabulary = await self._read_vocabulary(spec)
        grammar = self._cached(spec) or await self._compile_once(spec, vocabulary)
        if reasoning is Reasoning.NONE or vocabulary.end_think is None:
            return grammar
        may_begin = reasoning is Reasoning.MAY_BEGIN
        if may_begin and vocabulary.think is None:
            return grammar
        return ReasoningGrammar(grammar, vocabulary.end_think, vocabulary.think if may_begin else None)

    def limited(self, grammar: Grammar | None, budget: ThinkingBudget) -> Grammar:
        """See `Grammars`. `grammar` must have been compiled here."""
        return limited(cast(CompiledGrammar | ReasoningGrammar | None, grammar), budget)

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._trials is not None:
            self._trials.close()

    async def _read_vocabulary(self, spec: GrammarSpec) -> Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = asyncio.get_running_loop().run_in_executor(self._pool, self._made_vocabulary)
        try:
            return await asyncio.shield(self._vocabulary)
        except ValueError as error:
            raise InvalidRequest(
                f"{spec.param}: structured output is not supported for this model's tokenizer.", param=spec.param
            ) from error

    def _made_vocabulary(self) -> Vocabulary:
        """Runs in the pool, once, so a fault is logged once however many requests fail by it."""
        try:
            table = self._make_table()
            trials = CompileTrials(table, self._limits.trial)
            trials.start()  # the other process loads the vocabulary at the same time
            self._trials = trials
            if self._is_closed:
                trials.close()
            return vocabulary_of_table(table)
        except ValueError:
            _logger.exception("grammars cannot be compiled for this tokenizer")
            raise

    def _cached(self, spec: GrammarSpec) -> CompiledGrammar | None:
        grammar = self._cache.get(spec)
        if grammar is None:
            return None
        if grammar.is_spent:
            self._forget(spec)
            return None
        self._cache.move_to_end(spec)
        return grammar

    async def _compile_once(self, spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
        pending = self._pending.get(spec)
        if pending is None:
            pending = asyncio.ensure_future(self._compile(spec, vocabulary))
            self._pending[spec] = pending
            pending.add_done_callback(lambda future: self._settle(spec, future))
        try:
            return await asyncio.shield(pending)
        finally:
            del pending  # an exception's traceback refers to this frame: avoid a reference cycle

    def _settle(self, spec: GrammarSpec, future: asyncio.Future[CompiledGrammar]) -> None:
        del self._pending[spec]
        if not future.cancelled() and future.exception() is None:
            self._keep(spec, future.result())

    async def _compile(self, spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
        if spec in self._refused:
            self._refused.move_to_end(spec)
            raise InvalidRequest(self._refused[spec], param=spec.param)
        self._note_compiling(1)
        try:
            trial, grammar = await self._in_pool(spec, vocabulary)
        except ValueError as error:
            raise InvalidRequest(f"{spec.param}: {grammar_fault(str(error))}", param=spec.param) from error
        finally:
            self._note_compiling(-1)
        if trial.gave_way:
            raise Overloaded("Other grammars are waiting to be compiled. Try again later.", retry_after_s=2.0)
        if grammar is None:
            refusal = f"{spec.param}: {trial.error}"
            if trial.is_costly:
                self._refuse_from_now_on(spec, refusal)
            raise InvalidRequest(refusal, param=spec.param)
        return grammar

    async def _in_pool(self, spec: GrammarSpec, vocabulary: Vocabulary) -> tuple[Trial, CompiledGrammar | None]:
        """Raises Overloaded if no thread is free in time."""
        future = self._pool.submit(self._try_and_compile, spec, vocabulary)
        running = asyncio.wrap_future(future)
        try:
            await asyncio.wait({running}, timeout=self._limits.wait_s)
            if not running.done() and future.cancel():
                raise Overloaded("Other grammars are waiting to be compiled. Try again later.", retry_after_s=2.0)
            return await running
        finally:
            del future, running  # avoid a reference cycle, as above

    def _try_and_compile(self, spec: GrammarSpec, vocabulary: Vocabulary) -> tuple[Trial, CompiledGrammar | None]:
        """Runs in the pool."""
        assert self._trials is not None, "they are there before the vocabulary is"
        trial = self._trials.run(spec)
        if trial.error is not None or trial.gave_way:
            return trial, None
        grammar = compile_grammar(spec, vocabulary)
        grammar.num_bytes = max(grammar.num_bytes, trial.num_bytes)
        return trial, grammar

    def _note_compiling(self, change: int) -> None:
        """Count compilations, and tell the trials when requests begin or cease to wait for a thread."""
        were_waiting, self._num_compiling = self._num_waiting, self._num_compiling + change
        if self._trials is not None and bool(were_waiting) != bool(self._num_waiting):
            self._trials.note_waiting(self._num_waiting)

    @property
    def _num_waiting(self) -> int:
        return max(0, self._num_compiling - self._limits.num_threads)

    def _refuse_from_now_on(self, spec: GrammarSpec, refusal: str) -> None:
        self._refused[spec] = refusal
        if len(self._refused) > self._limits.num_refused:
            self._refused.popitem(last=False)

    def _keep(self, spec: GrammarSpec, grammar: CompiledGrammar) -> None:
        self._cache[spec] = grammar
        self.cached_bytes += grammar.num_bytes
        while self.cached_bytes > self._limits.cache_bytes or len(self._cache) > self._limits.num_cached:
            self._forget(next(iter(self._cache)))

    def _forget(self, spec: GrammarSpec) -> None:
        self.cached_bytes -= self._cache.pop(spec).num_bytes
