from __future__ import annotations

import pytest

from service.structured import grammar_matcher
from tests.structured.tiny_grammars import END_ID, fits, ids, regex


def test_accepts_what_fits_and_knows_its_end() -> None:
    matcher = regex("abc?").start()
    assert all(matcher.accept(token_id) for token_id in ids("a") + ids("b"))
    assert not matcher.is_finished, "c may follow"
    assert matcher.fork().accept(END_ID), "and need not"
    assert matcher.accept(ids("c")[0])
    assert matcher.is_finished, "nothing can follow"


def test_the_end_is_accepted_only_where_the_grammar_accepts() -> None:
    matcher = regex("abc").start()
    assert matcher.accept(ids("a")[0])
    assert not matcher.accept(END_ID)


def test_what_does_not_fit_ends_the_grammars_use() -> None:
    grammar = regex("abc")
    assert not grammar.start().accept(ids("x")[0])
    assert grammar.is_spent, "the next request compiles it anew"


def test_forks_go_their_own_ways() -> None:
    grammar = regex("(ab|ac)d")
    matcher = grammar.start()
    assert matcher.accept(ids("a")[0])
    other = matcher.fork()
    assert matcher.accept(ids("b")[0])
    assert other.accept(ids("c")[0])
    assert fits(grammar, "abd"), "the grammar itself has not moved"


def test_what_was_cut_by_a_limit_is_not_whole() -> None:
    """After a mask that could not be computed the end is all that is allowed; taken, it would look like success."""
    grammar = regex("((a{1,40}){1,40}){1,40}")
    matcher = grammar.start()
    while not matcher.constraint.is_error():
        assert matcher.accept(ids("a")[0])
        matcher.constraint.compute_bitmask()
    assert not matcher.accept(END_ID)
    assert grammar.is_spent
    refusal = matcher.refusal
    assert refusal is not None
    assert refusal.param == "regex"
    assert "too many expressions" in str(refusal)


def test_a_token_against_the_grammar_is_not_the_clients_fault() -> None:
    matcher = regex("abc").start()
    assert not matcher.accept(ids("x")[0])
    assert matcher.refusal is None


def test_what_takes_too_long_to_read_again_and_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_matcher, "_SLOW_ACCEPT_S", -1.0)
    matcher = regex("abcd").start()
    assert [matcher.accept(token_id) for token_id in ids("a") + ids("b") + ids("c")] == [True, True, False]
    assert matcher.refusal is not None
    assert "takes too long" in str(matcher.refusal)
