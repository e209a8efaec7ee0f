from __future__ import annotations

import pytest

from loadtest.bench.token_masks import CASES, places, row_seconds
from service.structured.compilation import compile_grammar
from service.structured.token_bitmask import TokenBitmask
from tests.structured.tiny_grammars import VOCABULARY


@pytest.mark.parametrize("name", CASES)
def test_measures_every_place_of_a_text_that_is_the_grammars(name: str) -> None:
    spec, text = CASES[name]
    matchers, accepts = places(compile_grammar(spec, VOCABULARY), VOCABULARY, text)
    assert len(matchers) == len(accepts) > 100
    masker = TokenBitmask(64, VOCABULARY.size, VOCABULARY.eos_token_ids)
    assert len(row_seconds(masker, matchers, 64)) == -(-len(matchers) // 64)
