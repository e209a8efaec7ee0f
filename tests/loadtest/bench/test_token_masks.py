from __future__ import annotations

import pytest

from loadtest.bench.token_masks import CASES, Writer, step_seconds
from service.structured.compilation import compile_grammar
from service.structured.token_bitmask import TokenBitmask
from tests.structured.tiny_grammars import VOCABULARY


@pytest.mark.parametrize("name", CASES)
def test_measures_every_place_of_a_text_that_is_the_grammars(name: str) -> None:
    spec, text = CASES[name]
    grammar, token_ids = compile_grammar(spec, VOCABULARY), VOCABULARY.trie.greedy_tokenize(text)
    writers = [Writer(grammar, token_ids, len(token_ids) * index // 3) for index in range(3)]
    seconds = step_seconds(TokenBitmask(3, VOCABULARY.size, VOCABULARY.eos_token_ids), writers, len(token_ids))
    assert len(seconds) == len(token_ids) > 100
    assert all(each.row >= 0 and each.step > 0 for each in seconds)
    assert all(len(writer.accept_s) > len(token_ids) for writer in writers), "on, from the beginning"
