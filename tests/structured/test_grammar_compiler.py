from __future__ import annotations

import asyncio
import threading

import pytest

from service.core.grammar import GrammarSpec, Reasoning
from service.errors import InvalidRequest, Overloaded
from service.structured import grammar_compiler
from service.structured.grammar_compiler import CompileLimits, GrammarCompiler
from service.structured.grammar_matcher import CompiledGrammar, ReasoningGrammar
from service.structured.vocabulary import Vocabulary
from tests.structured.tiny_grammars import VOCABULARY, ids

PATTERN = GrammarSpec("regex", "a+", "regex")


def spec(number: int) -> GrammarSpec:
    return GrammarSpec("regex", f"a{{{number}}}", "regex")


def test_a_grammar_is_compiled_once_however_many_ask() -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(lambda: VOCABULARY)
        first, second = await asyncio.gather(compiler.compile(PATTERN), compiler.compile(PATTERN))
        assert first is second
        assert await compiler.compile(GrammarSpec("regex", "a+", "regex")) is first
        compiler.close()

    asyncio.run(scene())


def test_what_is_kept_is_bounded_and_the_least_used_goes_first() -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(lambda: VOCABULARY, CompileLimits(cache_bytes=16 * 2**20))
        grammars = {number: await compiler.compile(spec(number)) for number in (1, 2, 3)}
        assert await compiler.compile(spec(1)) is grammars[1]
        await compiler.compile(spec(4))
        assert compiler.cached_bytes <= 16 * 2**20
        assert await compiler.compile(spec(1)) is grammars[1]
        assert await compiler.compile(spec(2)) is not grammars[2]
        compiler.close()

    asyncio.run(scene())


def test_a_grammar_that_outgrew_its_limits_is_compiled_anew() -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(lambda: VOCABULARY)
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
        compiler = GrammarCompiler(lambda: VOCABULARY)
        with pytest.raises(InvalidRequest, match=word) as refusal:
            await compiler.compile(GrammarSpec(kind, source, "the_field"))
        assert refusal.value.param == "the_field"
        compiler.close()

    asyncio.run(scene())


def test_time_is_limited_and_stuck_threads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def slow(spec: GrammarSpec, vocabulary: Vocabulary) -> CompiledGrammar:
        gate.wait(10)
        raise ValueError("too late")

    async def scene() -> None:
        compiler = GrammarCompiler(lambda: VOCABULARY, CompileLimits(seconds=0.05, num_threads=1))
        compiled = await compiler.compile(PATTERN)
        monkeypatch.setattr(grammar_compiler, "compile_grammar", slow)
        with pytest.raises(InvalidRequest, match=r"0\.05 s"):
            await compiler.compile(spec(1))
        with pytest.raises(Overloaded):
            await compiler.compile(spec(2))
        assert await compiler.compile(PATTERN) is compiled, "what is ready is served meanwhile"
        gate.set()
        monkeypatch.undo()
        while True:
            try:
                await compiler.compile(spec(3))
                break
            except Overloaded:
                await asyncio.sleep(0.01)
        compiler.close()

    asyncio.run(scene())


def test_a_tokenizer_that_cannot_be_read_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Vocabulary:
        raise ValueError("no such model")

    async def scene() -> None:
        compiler = GrammarCompiler(fail)
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="cannot be constrained"):
                await compiler.compile(PATTERN)
        compiler.close()

    asyncio.run(scene())
    assert len(caplog.records) == 1, "clients cannot fill the log"


def test_reasoning_comes_first_if_the_model_marks_it_by_one_token() -> None:
    async def scene() -> None:
        compiler = GrammarCompiler(lambda: VOCABULARY)
        assert isinstance(await compiler.compile(PATTERN, Reasoning.BEGUN), ReasoningGrammar)
        assert isinstance(await compiler.compile(PATTERN, Reasoning.MAY_BEGIN), ReasoningGrammar)
        assert isinstance(await compiler.compile(PATTERN), CompiledGrammar)
        plain = Vocabulary(VOCABULARY.trie, VOCABULARY.size, VOCABULARY.eos_token_ids, think=None, end_think=None)
        unmarked = GrammarCompiler(lambda: plain)
        assert isinstance(await unmarked.compile(PATTERN, Reasoning.BEGUN), CompiledGrammar)
        compiler.close()
        unmarked.close()

    asyncio.run(scene())
