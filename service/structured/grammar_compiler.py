"""Grammar and vocabulary -> automaton: slow, so it is done in a pool, within limits, and remembered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from llguidance import LLMatcher, LLParserLimits

from service.core.grammar import GrammarSpec, Reasoning
from service.errors import InvalidRequest, Overloaded
from service.structured.grammar_matcher import CompiledGrammar, ReasoningGrammar
from service.structured.grammar_source import as_lark, grammar_source
from service.structured.lark_places import lark_places
from service.structured.places import MAX_BYTES, AnyPlaces
from service.structured.regex_places import regex_places
from service.structured.vocabulary import Vocabulary, VocabularyMaker

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """seconds: of work for one grammar. cache_bytes: of compiled grammars that are kept for the next request.

    num_threads: grammars that are compiled at a time; the vocabulary is read in one of these threads too.
    """

    seconds: float = 2.0
    cache_bytes: int = 256 * 2**20
    num_threads: int = 2


class GrammarCompiler:
    """The `Grammars` of the API. Event-loop thread; the vocabulary is read at the first request.

    The same grammar that is asked for by many at once is compiled once. A grammar that breaks its time limit cannot
    be interrupted: its thread is given up, and while all of them are, new grammars are refused.
    """

    def __init__(self, make_vocabulary: VocabularyMaker, limits: CompileLimits | None = None) -> None:
        self._make_vocabulary = make_vocabulary
        self._limits = limits or CompileLimits()
        self._pool = ThreadPoolExecutor(self._limits.num_threads, "grammar")
        self._num_stuck = 0
        self._vocabulary: asyncio.Future[Vocabulary] | None = None
        self._pending: dict[GrammarSpec, asyncio.Future[CompiledGrammar]] = {}
        self._cache: OrderedDict[GrammarSpec, CompiledGrammar] = OrderedDict()
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

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _read_vocabulary(self, spec: GrammarSpec) -> Vocabulary:
        if self._vocabulary is None:
            self._vocabulary = asyncio.get_running_loop().run_in_executor(self._pool, self._made_vocabulary)
        try:
            return await asyncio.shield(self._vocabulary)
        except ValueError as error:
            raise InvalidRequest(
                f"{spec.param}: this model's output cannot be constrained.", param=spec.param
            ) from error

    def _made_vocabulary(self) -> Vocabulary:
        """In the pool, and once: so is what is wrong with it logged, however many requests it refuses."""
        try:
            return self._make_vocabulary()
        except ValueError:
            _logger.exception("the tokenizer cannot be constrained by grammars")
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
            del pending  # a fault knows this frame by its traceback: no reference cycle

    def _settle(self, spec: GrammarSpec, future: asyncio.Future[CompiledGrammar]) -> None:
        del self._pending[spec]
        if not future.cancelled() and future.exception() is None:
            self._keep(spec, future.result())

    async def _compile(self, spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
        try:
            return await self._within_limits(lambda: compile_grammar(spec, vocabulary), spec.param)
        except ValueError as error:
            raise InvalidRequest(f"{spec.param}: {_reason(str(error))}", param=spec.param) from error

    async def _within_limits(self, work: Callable[[], _T], param: str) -> _T:
        if self._num_stuck >= self._limits.num_threads:
            raise Overloaded("other grammars take too long to compile; try again later", retry_after_s=10.0)
        job = _Job(work)
        future = self._pool.submit(job)
        running = asyncio.wrap_future(future)
        try:
            limit_s = self._limits.seconds
            await asyncio.wait({running}, timeout=limit_s)
            if not running.done() and job.started_s is not None:
                await asyncio.wait({running}, timeout=max(0.0, job.started_s + limit_s - time.monotonic()))
            if running.done():
                return running.result()
            if future.cancel():
                raise Overloaded("other grammars take too long to compile; try again later", retry_after_s=limit_s)
            self._num_stuck += 1
            running.add_done_callback(self._unstick)
            raise InvalidRequest(f"{param}: takes longer than {limit_s:g} s to compile.", param=param)
        finally:
            del future, running  # no reference cycle here either

    def _unstick(self, running: asyncio.Future[_T]) -> None:
        self._num_stuck -= 1
        running.exception()  # nobody waits for it any more

    def _keep(self, spec: GrammarSpec, grammar: CompiledGrammar) -> None:
        self._cache[spec] = grammar
        self.cached_bytes += grammar.num_bytes
        while self.cached_bytes > self._limits.cache_bytes:
            self._forget(next(iter(self._cache)))

    def _forget(self, spec: GrammarSpec) -> None:
        self.cached_bytes -= self._cache.pop(spec).num_bytes


class _Job(Generic[_T]):
    """Work for the pool that says when it began."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self.started_s: float | None = None

    def __call__(self) -> _T:
        self.started_s = time.monotonic()
        return self._work()


_PARSER_LIMITS = LLParserLimits(
    max_items_in_row=20_000,
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
"""A mask that needs more than about 10 ms, and a lexer of more than about 40 MB, end the request that asks for it."""
_BASE_BYTES, _BYTES_A_CHARACTER = 2**20, 400
"""Measured with schemas of 50 bytes to 60 kB (many properties, enums, alternatives): 0.5 to 18 MB."""


def compile_grammar(spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
    """Raises ValueError with the reason if it cannot be honoured. Any thread."""
    prototype = LLMatcher(vocabulary.trie, grammar_source(spec), log_level=0, limits=_PARSER_LIMITS)
    _check_sound(prototype)
    first = prototype.deep_copy()
    first.compute_bitmask()  # fills the lexer's tables, which all copies share; and it must be possible
    _check_sound(first)
    places = _places(spec, vocabulary)
    num_bytes = _BASE_BYTES + _BYTES_A_CHARACTER * len(spec.source) + (0 if places is None else MAX_BYTES)
    return CompiledGrammar(prototype, num_bytes, places)


def _check_sound(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(matcher.get_error())


def _places(spec: GrammarSpec, vocabulary: Vocabulary) -> AnyPlaces | None:
    if spec.kind == "regex":
        return regex_places(spec.source, vocabulary.token_bytes)
    if spec.beginning is not None:
        return regex_places(spec.beginning, vocabulary.token_bytes, ends_at_match=True)
    if spec.kind == "grammar":
        return lark_places(as_lark(spec.source), vocabulary.token_bytes)
    return None


def _reason(error: str) -> str:
    """What is wrong, by its keyword and cut short: llguidance's first line, for the others show the grammar."""
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith("<non-verbose")]
    text = lines[0] if lines else "no output can satisfy it"
    faults = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if text.endswith("regex parse error:") and faults:
        text = f"pattern {lines[1]}: {faults[0]}"
    elif text.startswith(("Pointer '", "Resource '")):
        text = f"$ref: {text}"
    return text if len(text) <= 200 else text[:197] + "..."
