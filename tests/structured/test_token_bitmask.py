from __future__ import annotations

import numpy as np
import pytest

from service.structured.grammar_matcher import ReasoningGrammar
from service.structured.token_bitmask import TokenBitmask
from tests.structured.masks import allowed_ids
from tests.structured.tiny_grammars import END_ID, TOKENIZER, ids, regex

SIZE = TOKENIZER.num_tokens


def test_each_row_is_its_matchers() -> None:
    masker = TokenBitmask(8, SIZE, frozenset({END_ID}))
    digits, word = regex("[0-9]{2}").start(), regex("a?").start()
    masks = masker.begin([digits, word, digits.fork()], [0, -1, 1, 2])
    bits = np.asarray(masks.wait())
    assert bits.dtype == np.int32 and bits.shape == (3, -(-SIZE // 32))
    assert {TOKENIZER.decode([token_id]) for token_id in allowed_ids(bits[0])} == set("0123456789")
    assert sorted(allowed_ids(bits[1])) == sorted([END_ID, *ids("a")])
    assert (bits[2] == bits[0]).all()
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


def test_a_grammar_whose_mask_fails_spoils_no_other(caplog: pytest.LogCaptureFixture) -> None:
    masker = TokenBitmask(2, SIZE, frozenset({END_ID}))
    good, bad = regex("a").start(), regex("b").start()

    class Broken:
        def unsafe_compute_mask_ptr(self, *arguments: object) -> None:
            raise RuntimeError("broken")

    bad._state = Broken()  # type: ignore[assignment]
    bits = np.asarray(masker.begin([good, bad], [0, 1]).wait())
    assert allowed_ids(bits[0]) == ids("a")
    assert allowed_ids(bits[1]) == []
    assert "failed" in caplog.text
