from __future__ import annotations

import asyncio
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from service.core.grammar import GrammarSpec, Reasoning
from service.errors import InvalidRequest, Overloaded
from service.structured import grammar_compiler
from service.structured.compile_fork_server import Trial, TrialLimits
from service.structured.grammar_compiler import CompileLimits, GrammarCompiler
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.reasoning_matcher import ReasoningGrammar
from service.structured.vocabulary import TokenTable
from tests.structured.tiny_grammars import ids, table

PATTERN = GrammarSpec("regex", "a+", "regex")


class Untried:
    """Trials that every grammar passes, without a process: most laws here are about what comes after."""

    def __init__(self, table: TokenTable, limits: TrialLimits) -> None:
        self.waiting: list[int] = []

    def start(self) -> None: ...

    def close(self) -> None: ...

    def run(self, spec: GrammarSpec) -> Trial:
        return Trial()

    def note_waiting(self, num_waiting: int) -> None:
        self.waiting.append(num_waiting)


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_compiler, "CompileTrials", Untried)


@contextmanager
def compiling(limits: CompileLimits | None = None) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(table, limits)
    try:
        yield compiler
    finally:
        compiler.close()


def spec(number: int) -> GrammarSpec:
    return GrammarSpec("regex", f"a{{{number}}}", "regex")


def bomb(number: int) -> GrammarSpec:
    return GrammarSpec("json_schema", f'{{"type": "integer", "multipleOf": {number}}}', "guided_json")


@pytest.mark.usefixtures("untried")
def test_a_grammar_is_compiled_once_however_many_ask() -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(table)
        first, second = await asyncio.gather(compiler.compile(PATTERN), compiler.compile(PATTERN))
        assert first is second
        assert await compiler.compile(GrammarSpec("regex", "a+", "regex")) is first
        compiler.close()

    asyncio.run(scene())


@pytest.mark.usefixtures("untried")
def test_what_is_kept_is_bounded_and_the_least_used_goes_first() -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(table, CompileLimits(cache_bytes=13 * 2**18))
        grammars = {number: await compiler.compile(spec(number)) for number in (1, 2, 3)}
        assert await compiler.compile(spec(1)) is grammars[1]
        await compiler.compile(spec(4))
        assert compiler.cached_bytes <= 13 * 2**18
        assert await compiler.compile(spec(1)) is grammars[1]
        assert await compiler.compile(spec(2)) is not grammars[2]
        compiler.close()

    asyncio.run(scene())


@pytest.mark.usefixtures("untried")
def test_a_grammar_that_outgrew_its_limits_is_compiled_anew() -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(table)
        grammar = await compiler.compile(PATTERN)
        assert not grammar.start().accept(ids("x")[0])
        assert await compiler.compile(PATTERN) is not grammar
        compiler.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("kind", "source", "word"),
    [
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", '{"$ref": "http://example.com/x"}', "http"),
        ("regex", "(", "unclosed group"),
        ("grammar", "start: x", "x"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(kind: str, source: str, word: str) -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(table)
        with pytest.raises(InvalidRequest, match=word) as refusal:
            await compiler.compile(GrammarSpec(kind, source, "the_field"))
        assert refusal.value.param == "the_field"
        compiler.close()

    asyncio.run(scene())


def test_what_a_grammar_takes_is_what_its_trial_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema of 50 bytes may be an automaton of 50 MB."""

    class Large(Untried):
        def run(self, spec: GrammarSpec) -> Trial:
            return Trial(num_bytes=50 * 2**20)

    monkeypatch.setattr(grammar_compiler, "CompileTrials", Large)

    async def scene() -> None:
        with compiling(CompileLimits(cache_bytes=120 * 2**20)) as compiler:
            first, _, third = [await compiler.compile(spec(number)) for number in (1, 2, 3)]
            assert compiler.cached_bytes == 100 * 2**20
            assert await compiler.compile(spec(3)) is third
            assert await compiler.compile(spec(1)) is not first

    asyncio.run(scene())


@pytest.mark.usefixtures("untried")
def test_so_many_are_kept_and_no_more() -> None:
    async def scene() -> None:
        with compiling(CompileLimits(num_cached=2)) as compiler:
            first, second, _ = [await compiler.compile(spec(number)) for number in (1, 2, 3)]
            assert await compiler.compile(spec(2)) is second
            assert await compiler.compile(spec(1)) is not first

    asyncio.run(scene())


def test_a_bomb_ends_and_holds_up_nobody() -> None:
    """Its work is stopped, not given up: what it takes is taken from a process that ends, and others are served."""

    async def scene() -> None:
        with compiling(CompileLimits(TrialLimits(cpu_s=0.3, wall_s=20.0), num_threads=2)) as compiler:
            await compiler.compile(PATTERN)
            before_mib = resident_mib()
            bombs = [asyncio.ensure_future(compiler.compile(bomb(number))) for number in (9999991, 9999973)]
            await asyncio.sleep(0.1)
            started_s = time.monotonic()
            assert isinstance(await compiler.compile(spec(7)), CompiledGrammar)
            assert time.monotonic() - started_s < 5
            for refusal in await asyncio.gather(*bombs, return_exceptions=True):
                assert isinstance(refusal, InvalidRequest | Overloaded)
            assert resident_mib() - before_mib < 50

    asyncio.run(scene())


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def test_a_costly_grammar_is_remembered_by_what_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends it again and again costs nothing; so much is remembered and no more."""
    tried: list[GrammarSpec] = []

    class Costly(Untried):
        def run(self, spec: GrammarSpec) -> Trial:
            tried.append(spec)
            return Trial("takes longer than 2 s to compile", is_costly=True)

    monkeypatch.setattr(grammar_compiler, "CompileTrials", Costly)

    async def scene() -> None:
        with compiling(CompileLimits(num_refused=2)) as compiler:
            for number in (1, 1, 2, 1, 3, 2):
                with pytest.raises(InvalidRequest, match="regex: takes longer than 2 s") as refusal:
                    await compiler.compile(spec(number))
                assert refusal.value.param == "regex"

    asyncio.run(scene())
    assert tried == [spec(1), spec(2), spec(3), spec(2)]


def test_who_waits_is_told_of_and_served_or_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    made: list[Gated] = []

    class Gated(Untried):
        def __init__(self, table: TokenTable, limits: TrialLimits) -> None:
            super().__init__(table, limits)
            made.append(self)

        def run(self, spec: GrammarSpec) -> Trial:
            return Trial() if spec == PATTERN or gate.wait(10) else Trial(gave_way=True)

    monkeypatch.setattr(grammar_compiler, "CompileTrials", Gated)

    async def scene() -> None:
        with compiling(CompileLimits(num_threads=1, wait_s=0.2)) as compiler:
            ready = await compiler.compile(PATTERN)
            first = asyncio.ensure_future(compiler.compile(spec(1)))
            await asyncio.sleep(0.01)
            with pytest.raises(Overloaded):
                await compiler.compile(spec(2))
            assert await compiler.compile(PATTERN) is ready, "what is ready is served meanwhile"
            assert made[0].waiting == [1, 0]
            gate.set()
            assert isinstance(await first, CompiledGrammar)

    asyncio.run(scene())


def test_a_trial_that_gave_way_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [Trial(gave_way=True), Trial()]

    class Busy(Untried):
        def run(self, spec: GrammarSpec) -> Trial:
            return trials.pop(0)

    monkeypatch.setattr(grammar_compiler, "CompileTrials", Busy)

    async def scene() -> None:
        with compiling() as compiler:
            with pytest.raises(Overloaded):
                await compiler.compile(PATTERN)
            assert isinstance(await compiler.compile(PATTERN), CompiledGrammar)

    asyncio.run(scene())


@pytest.mark.usefixtures("untried")
def test_a_tokenizer_that_cannot_be_read_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> TokenTable:
        raise ValueError("no such model")

    async def scene() -> None:
        compiler = GrammarCompiler(fail)
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="is not supported for this model's tokenizer"):
                await compiler.compile(PATTERN)
        compiler.close()

    asyncio.run(scene())
    assert len(caplog.records) == 1, "clients cannot fill the log"


@pytest.mark.usefixtures("untried")
def test_reasoning_comes_first_if_the_model_marks_it_by_one_token() -> None:
    async def scene() -> None:
        with compiling() as compiler:
            assert isinstance(await compiler.compile(PATTERN, Reasoning.BEGUN), ReasoningGrammar)
            assert isinstance(await compiler.compile(PATTERN, Reasoning.MAY_BEGIN), ReasoningGrammar)
            assert isinstance(await compiler.compile(PATTERN), CompiledGrammar)
        unmarked = GrammarCompiler(lambda: replace(table(), think=None, end_think=None))
        assert isinstance(await unmarked.compile(PATTERN, Reasoning.BEGUN), CompiledGrammar)
        unmarked.close()

    asyncio.run(scene())
