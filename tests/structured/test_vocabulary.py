from __future__ import annotations

import numpy as np
import pytest
import tokenizers

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.vocabulary import vocabulary_of
from service.text.tokenizer import Tokenizer
from tests.structured.masks import allowed_ids
from tests.structured.tiny_grammars import TOKENIZER, vocabulary
from tests.text import tiny_tokenizers


def test_knows_the_ends_and_the_marks_of_reasoning() -> None:
    known = vocabulary()
    assert known.trie.eos_tokens == [2]
    assert known.think == TOKENIZER.encode("<think>", add_special_tokens=False)[0]
    assert known.end_think == TOKENIZER.encode("</think>", add_special_tokens=False)[0]


def test_marks_that_are_several_tokens_are_no_marks() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_fallback())
    known = vocabulary_of(tokenizer, tokenizer.num_tokens, frozenset({2}))
    assert known.think is None
    assert known.end_think is None


def test_logits_may_be_more_than_tokens() -> None:
    assert vocabulary_of(TOKENIZER, 512, frozenset({2})).trie.vocab_size == 512


def test_bytes_of_a_sentencepiece_vocabulary() -> None:
    """Spaces are `▁`, what has no token of its own is written in bytes."""
    tokenizer = Tokenizer(tiny_tokenizers.byte_fallback())
    known = vocabulary_of(tokenizer, tokenizer.num_tokens, frozenset({2}))
    matcher = compile_grammar(GrammarSpec("regex", "hello world é", "regex"), known).start()
    ids = [tokenizer.id_of(token) for token in ("hell", "o", "▁world", "▁", "<0xC3>", "<0xA9>")]
    assert all(token_id is not None and matcher.accept(token_id) for token_id in ids)
    assert matcher.is_finished


def test_tokens_that_were_added_without_logits_are_left_out() -> None:
    more = tiny_tokenizers.byte_level()
    size = more.get_vocab_size()
    more.add_special_tokens(["<|extra|>"])
    more.add_tokens(["plainextra"])
    tokenizer = Tokenizer(more)
    known = vocabulary_of(tokenizer, size, frozenset({2}))
    assert known.trie.vocab_size == size
    matcher = compile_grammar(GrammarSpec("regex", "hi plainextra", "regex"), known).start()
    ids = TOKENIZER.encode("hi plainextra", add_special_tokens=False)
    assert all(matcher.accept(token_id) for token_id in ids)
    assert matcher.is_finished


def test_tokens_without_logits_cannot_be_masked() -> None:
    with pytest.raises(ValueError, match="logits"):
        vocabulary_of(TOKENIZER, 100, frozenset({2}))


@pytest.mark.parametrize("model", list(tiny_tokenizers.ADDED_TOKENS))
def test_free_text_may_hold_added_tokens_that_are_text_and_no_control_token(model: str) -> None:
    tokenizer = Tokenizer(tiny_tokenizers.with_added(model))
    known = vocabulary_of(tokenizer, tokenizer.num_tokens, frozenset({2}))
    for spec in (GrammarSpec("regex", "(.|\n)*x", "regex"), GrammarSpec("json_schema", '{"type":"string"}', "x")):
        matcher = compile_grammar(spec, known).start()
        if spec.kind == "json_schema":
            assert matcher.accept(tokenizer.encode('"', add_special_tokens=False)[-1])
        allowed = set(allowed_ids(np.frombuffer(matcher.constraint.compute_bitmask(), np.int32)))
        marks = {token_id for token_id in tokenizer.added_tokens if token_id not in tokenizer.special_ids}
        assert marks <= allowed
        assert not allowed & tokenizer.special_ids


def test_an_id_without_a_token_is_never_allowed() -> None:
    known = vocabulary_of(TOKENIZER, TOKENIZER.num_tokens + 40, frozenset({2}))
    matcher = compile_grammar(GrammarSpec("regex", "(.|\n)*", "regex"), known).start()
    allowed = allowed_ids(np.frombuffer(matcher.constraint.compute_bitmask(), np.int32))
    assert max(allowed) < TOKENIZER.num_tokens


def test_a_tokenizer_whose_bytes_are_not_known_cannot_be_constrained() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(ValueError, match="byte-level"):
        vocabulary_of(Tokenizer(words), 2, frozenset({1}))
