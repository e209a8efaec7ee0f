from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Hashable

import numpy as np
import pytest

from service.structured.grammar_matcher import CompiledGrammar, ReasoningGrammar
from service.structured.token_bitmask import TokenBitmask
from tests.structured.masks import allowed_ids
from tests.structured.tiny_grammars import END_ID, TOKENIZER, ids, regex, schema

SIZE = TOKENIZER.num_tokens


def test_each_row_is_its_matchers() -> None:
    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    digits, word = regex("[0-9]{2}").start(), regex("a?").start()
    masks = masker.begin([digits, word, digits.fork()], [0, -1, 1, 2])
    bits = np.asarray(masks.wait())
    assert bits.dtype == np.int32 and bits.shape == (2, -(-SIZE // 32))
    assert {TOKENIZER.decode([token_id]) for token_id in allowed_ids(bits[0])} == set("0123456789")
    assert sorted(allowed_ids(bits[1])) == sorted([END_ID, *ids("a")])
    assert masks.rows == [0, -1, 1, 0], "the fork stands where the first does"


def test_a_mask_that_is_kept_keeps_nothing_of_its_grammar() -> None:
    """Else a client's grammars, one after another, would take far more memory than their masks."""
    masker = TokenBitmask(1, SIZE, frozenset({END_ID}))
    grammar = regex("[a-z]{2}")
    matcher = grammar.start()
    masker.begin([matcher], [0]).wait()
    places = weakref.ref(grammar.places)
    assert places() is not None
    del grammar, matcher
    gc.collect()
    assert places() is None


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


class CountingMatcher:
    """A matcher that tells how often its mask was computed."""

    also_allowed = None

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.matcher, self.num_asked = grammar.start(), 0

    @property
    def mask_key(self) -> Hashable:
        return self.matcher.mask_key

    @property
    def constraint(self) -> CountingMatcher:
        return self

    def unsafe_compute_mask_ptr(self, pointer: int, num_bytes: int) -> None:
        self.num_asked += 1
        self.matcher.constraint.unsafe_compute_mask_ptr(pointer, num_bytes)


def masks(masker: TokenBitmask, *matchers: object) -> list[list[int]]:
    masks = masker.begin(matchers, range(len(matchers)))
    bits = np.asarray(masks.wait())
    return [allowed_ids(bits[row]) for row in masks.rows]


def test_a_mask_is_computed_once_for_texts_at_one_place() -> None:
    masker = TokenBitmask(4, SIZE, frozenset({END_ID}))
    grammar = regex("[a-c]*d")
    first, same, later = (CountingMatcher(grammar) for _ in range(3))
    together = masks(masker, first, same)
    assert later.matcher.accept(ids("a")[0])
    assert masks(masker, later) == [together[0]] == [together[1]]
    assert first.num_asked + same.num_asked + later.num_asked == 1
    assert {TOKENIZER.decode([token_id]) for token_id in together[0]} == set("abcd")


def test_kept_masks_are_bounded_and_the_least_used_goes_first() -> None:
    masker = TokenBitmask(4, SIZE, frozenset({END_ID}), kept_bytes=2 * 4 * -(-SIZE // 32))
    one, two, three = (CountingMatcher(regex(letter)) for letter in "abc")
    for matcher in (one, two, one, three, one, two):
        masks(masker, matcher)
    assert [matcher.num_asked for matcher in (one, two, three)] == [1, 2, 1]


def test_a_mask_that_failed_is_not_kept() -> None:
    masker = TokenBitmask(4, SIZE, frozenset({END_ID}))
    grammar = regex("a")

    class Broken(CountingMatcher):
        def unsafe_compute_mask_ptr(self, pointer: int, num_bytes: int) -> None:
            raise RuntimeError("broken")

    assert masks(masker, Broken(grammar)) == [[]]
    assert masks(masker, grammar.start()) == [ids("a")]


def test_whoever_thinks_shares_a_row() -> None:
    """A batch of models that think sends one mask to the device, not one each."""
    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    thinking = [ReasoningGrammar(regex(letter), 5, None).start() for letter in "abc"]
    masks = masker.begin([*thinking, schema('{"type":"object"}').start(), schema("{}").start()], range(5))
    assert masks.rows == [0, 0, 0, 1, 2], "where two JSON texts stand is not known to be the same"
    assert np.asarray(masks.wait()).shape[0] == 3


def test_one_place_after_the_reasoning_is_another_while_thinking() -> None:
    masker = TokenBitmask(4, SIZE, frozenset({END_ID}))
    grammar = regex("a+")
    thinking, may_think = ReasoningGrammar(grammar, 5, None), ReasoningGrammar(grammar, 5, 31)
    rows = masks(masker, grammar.start(), thinking.start(), may_think.start())
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
