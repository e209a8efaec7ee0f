from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from service.core.grammar import GrammarSpec
from service.structured import compilation
from service.structured.compilation import compile_grammar
from service.structured.grammar_matcher import CompiledGrammar, GrammarMatcher
from service.structured.grammar_source import grammar_source
from service.structured.reasoning_matcher import ReasoningGrammar
from service.structured.token_bitmask import TokenBitmask
from tests.examples import examples
from tests.structured.lark_grammars import lark_grammars
from tests.structured.masks import allowed_ids
from tests.structured.patterns import PATTERNS
from tests.structured.tiny_grammars import END_ID, TOKENIZER, VOCABULARY, ids, regex, schema

SIZE = TOKENIZER.num_tokens
OBJECT = (
    '{"type":"object","properties":{"a":{"type":"string"},"b":{"enum":["one","other"]},"c":{"type":"array","items":'
    '{"type":"number"}}},"required":["a"]}'
)
TEXT_OR_CALLS = r"""
start: block* text
block: open "x"
open[lazy]: /(.|\n)*<call>/
text: /(.|\n)*/
"""
SUMS = 'root ::= term (" "? [-+] " "? term)*\nterm ::= [0-9]+ | [a-z]+ | "(" root ")"'
SPECS = (
    PATTERNS.map(lambda pattern: GrammarSpec("regex", pattern, "x"))
    | lark_grammars().map(lambda grammar: GrammarSpec("lark", grammar, "x"))
    | st.sampled_from(
        [
            GrammarSpec("json_schema", OBJECT, "x"),
            GrammarSpec("json_schema", "{}", "x"),
            GrammarSpec("choice", '["positive", "negative", "neutral"]', "x"),
            GrammarSpec("lark", TEXT_OR_CALLS, "x"),
            GrammarSpec("grammar", SUMS, "x"),
        ]
    )
)
LIKED = frozenset(i for i in range(SIZE) if VOCABULARY.trie.decode_bytes([i]) in b'abc (+)[]{}",:<1')
"""Else a random text is hardly ever inside of anything."""


def test_each_row_is_its_matchers() -> None:
    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    digits, word = regex("[0-9]{2}").start(), regex("a?").start()
    masks = masker.begin([digits, word, digits.fork()], [0, -1, 1, 2])
    bits = np.asarray(masks.wait())
    assert bits.dtype == np.int32 and bits.shape == (3, -(-SIZE // 32))
    assert {TOKENIZER.decode([token_id]) for token_id in allowed_ids(bits[0])} == set("0123456789")
    assert sorted(allowed_ids(bits[1])) == sorted([END_ID, *ids("a")])
    assert allowed_ids(bits[2]) == allowed_ids(bits[0])
    assert masks.rows == [0, -1, 1, 2]


def test_masks_leave_the_matchers_as_they_are() -> None:
    masker = TokenBitmask(1, SIZE, frozenset({END_ID}))
    matcher = regex("ab").start()
    first = np.asarray(masker.begin([matcher], [0]).wait()).copy()
    assert (np.asarray(masker.begin([matcher], [0]).wait()) == first).all()
    assert matcher.accept(ids("a")[0])


def test_who_thinks_may_say_anything_but_the_end() -> None:
    masker = TokenBitmask(2, SIZE, frozenset({END_ID, 1}))
    thinking = ReasoningGrammar(regex("ab"), 5, None).start()
    allowed = allowed_ids(np.asarray(masker.begin([thinking], [0]).wait())[0])
    assert set(range(SIZE)) - set(allowed) == {END_ID, 1}


def test_who_may_think_may_begin_to() -> None:
    masker = TokenBitmask(2, SIZE, frozenset({END_ID}))
    matcher = ReasoningGrammar(regex("a+"), 5, 31).start()
    assert 31 in allowed_ids(np.asarray(masker.begin([matcher], [0]).wait())[0])
    assert matcher.accept(ids("a")[0])
    assert 31 not in allowed_ids(np.asarray(masker.begin([matcher], [0]).wait())[0])


def test_who_has_thought_enough_may_only_say_so() -> None:
    masker = TokenBitmask(4, SIZE, frozenset({END_ID}))
    spent = [ReasoningGrammar(grammar, 5, None, budget=0).start() for grammar in (None, regex("ab"))]
    masks = masker.begin([*spent, ReasoningGrammar(None, 7, None, budget=0).start()], range(3))
    rows = np.asarray(masks.wait())
    assert [allowed_ids(rows[row]) for row in masks.rows] == [[5], [5], [7]]


def test_more_logits_than_tokens() -> None:
    """Ids that the tokenizer does not have are forbidden."""
    masker = TokenBitmask(1, SIZE, frozenset({END_ID}))
    assert max(allowed_ids(np.asarray(masker.begin([regex(".*").start()], [0]).wait())[0])) < SIZE


def test_masks_stay_while_the_next_are_computed() -> None:
    masker = TokenBitmask(1, SIZE, frozenset({END_ID}))
    first, second = (masker.begin([regex(letter).start()], [0]) for letter in "ab")
    second.wait()
    assert allowed_ids(np.asarray(first.wait())[0]) == ids("a")
    assert allowed_ids(np.asarray(second.wait())[0]) == ids("b")


@pytest.mark.parametrize("num_later", [1, 3])
def test_masks_that_nobody_waits_for_do_not_come_into_later_ones(num_later: int) -> None:
    """The iteration that they were for has failed."""
    masker, may_begin = TokenBitmask(3, SIZE, frozenset({END_ID})), threading.Event()
    masker._thread.submit(may_begin.wait, 10)
    matchers = [regex(letter).start() for letter in "xyzabc"]
    masker.begin(matchers[:3], range(3))
    threading.Timer(0.1, may_begin.set).start()
    masker.begin(matchers[3:4], [0]).wait()
    bits = np.asarray(masker.begin(matchers[3 : 3 + num_later], range(num_later)).wait())
    masker._thread.submit(may_begin.wait, 10).result()
    assert [allowed_ids(row) for row in bits] == [ids(letter) for letter in "abc"[:num_later]]


@pytest.mark.parametrize("num_others", [0, 3])
def test_a_grammar_whose_mask_fails_spoils_no_other(caplog: pytest.LogCaptureFixture, num_others: int) -> None:
    masker = TokenBitmask(5, SIZE, frozenset({END_ID}))
    good, bad = regex("a").start(), regex("b").start()
    others = [regex("[a-z]*" + letter).start() for letter in "xyz"[:num_others]]

    class Broken:
        def unsafe_compute_mask_ptr(self, *arguments: object) -> None:
            raise RuntimeError("broken")

    bad._state = Broken()
    bits = np.asarray(masker.begin([good, bad, *others], range(2 + num_others)).wait())
    assert allowed_ids(bits[0]) == ids("a")
    assert all(allowed_ids(row) for row in bits[2:])
    assert allowed_ids(bits[1]) == []
    assert "failed" in caplog.text


def test_whoever_thinks_shares_a_row() -> None:
    """A batch of models that think sends one mask to the device, not one each."""
    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    thinking = [ReasoningGrammar(regex(letter), 5, None).start() for letter in "abc"]
    masks = masker.begin([*thinking, schema('{"type":"object"}').start(), schema("{}").start()], range(5))
    assert masks.rows == [0, 0, 0, 1, 2]
    assert np.asarray(masks.wait()).shape[0] == 3


def test_while_a_model_thinks_it_has_another_mask_than_after() -> None:
    masker = TokenBitmask(4, SIZE, frozenset({END_ID}))
    grammar = regex("a+")
    thinking, may_think = ReasoningGrammar(grammar, 5, None), ReasoningGrammar(grammar, 5, 31)
    masks = masker.begin([grammar.start(), thinking.start(), may_think.start()], range(3))
    rows = [allowed_ids(row) for row in np.asarray(masks.wait())]
    assert rows[0] == ids("a")
    assert len(rows[1]) > 300
    assert sorted(rows[2]) == sorted([*ids("a"), 31])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_rows_are_what_many_are(count: int) -> None:
    """Whoever waits computes one or two; waiting again gives the same."""
    masker = TokenBitmask(5, SIZE, frozenset({END_ID}))
    grammars = [schema(f'{{"type":"array","maxItems":{number}}}') for number in range(1, count + 1)]
    begun = masker.begin([grammar.start() for grammar in grammars], range(count))
    rows = np.asarray(begun.wait()).tolist()
    assert rows == np.asarray(begun.wait()).tolist()
    for grammar, row in zip(grammars, rows, strict=True):
        assert row == list(memoryview(grammar.start().constraint.compute_bitmask()).cast("i"))[: len(row)]


class Walk:
    """One sequence: its matcher as the service holds it, and the tokens that it has accepted."""

    def __init__(self, spec: GrammarSpec, matcher: GrammarMatcher, token_ids: tuple[int, ...] = ()) -> None:
        self.spec, self.matcher, self.token_ids = spec, matcher, token_ids

    def fork(self) -> Walk:
        return Walk(self.spec, self.matcher.fork(), self.token_ids)

    def step(self, allowed: list[int], draws: random.Random) -> bool:
        """By one of them; False: the text is at its end."""
        going_on = [token_id for token_id in allowed if token_id != END_ID]
        if not going_on or self.matcher.is_finished:
            return False
        liked = [token_id for token_id in going_on if token_id in LIKED]
        token_id = draws.choice(liked if liked and draws.random() < 0.7 else going_on)
        assert self.matcher.accept(token_id)
        self.token_ids += (token_id,)
        return True


def mask_of_fresh_matcher(walk: Walk) -> list[int] | None:
    """By llguidance alone: a lexer of its own, no mask before this one. None: the grammar exceeds the limits here."""
    source = grammar_source(walk.spec, VOCABULARY.marks)
    matcher = LLMatcher(VOCABULARY.trie, source, log_level=0, limits=compilation._PARSER_LIMITS)
    matcher.consume_tokens(list(walk.token_ids))
    mask = allowed_ids(np.frombuffer(matcher.compute_bitmask(), np.int32))
    return None if matcher.is_error() else mask


@given(specs=st.lists(SPECS, min_size=1, max_size=2), seed=st.integers(0, 99))
@example([GrammarSpec("json_schema", OBJECT, "x")], 1)
@example([GrammarSpec("lark", TEXT_OR_CALLS, "x"), GrammarSpec("grammar", SUMS, "x")], 2)
@example([GrammarSpec("regex", r"(\d{3}-)+[a-z ]*", "x"), GrammarSpec("regex", r"([A-Z][a-z]+( [a-z]+)*\. )+", "x")], 3)
@settings(max_examples=examples(20), deadline=None)
def test_a_rows_mask_is_a_fresh_matchers_that_has_read_the_same(specs: list[GrammarSpec], seed: int) -> None:
    """Whatever a matcher, its grammar or the masker keep from the masks before, of this sequence or of others."""
    draws, grammars = random.Random(seed), list[tuple[GrammarSpec, CompiledGrammar]]()
    for spec in specs:
        try:
            grammars.append((spec, compile_grammar(spec, VOCABULARY)))
        except ValueError:
            return  # it describes nothing that can be written
    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    walks: list[Walk] = []
    for _ in range(12):
        if len(walks) < 5:
            spec, grammar = draws.choice(grammars)
            walks.append(Walk(spec, grammar.start()))
            walks += [draws.choice(walks).fork()] if draws.random() < 0.3 else []
        masks = masker.begin([walk.matcher for walk in walks], range(len(walks)))
        bits = np.asarray(masks.wait())
        allowed = [allowed_ids(bits[row]) for row in masks.rows]
        fresh = [mask_of_fresh_matcher(walk) for walk in walks]
        if None in fresh:
            return
        assert allowed == fresh
        walks = [walk for walk, may in zip(walks, allowed, strict=True) if walk.step(may, draws)]
