from __future__ import annotations

import math

from service.api.answers.choice_text import ScoredToken
from service.api.answers.token_logprobs import (
    TokenNames,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
    scored_prompt,
)
from service.core.token_logprobs import TokenLogprobs
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
NAMES = TokenNames(TOKENIZER)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def scored(text: str, *top: tuple[int, float], chosen: float = -1.0) -> list[ScoredToken]:
    return [ScoredToken(token_id, TokenLogprobs(chosen, top), i) for i, token_id in enumerate(ids_of(text))]


def test_bytes_are_those_of_the_text_and_half_characters_are_escaped() -> None:
    content = chat_logprobs(NAMES, scored("a你"))["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == "a你".encode()
    assert [entry["token"] for entry in content] == ["a", "bytes:\\xe4", "bytes:\\xbd", "bytes:\\xa0"]


def test_special_tokens_are_spelled() -> None:
    special, name = 1, tiny_tokenizers.START
    entry = TokenLogprobs(-0.5, ((special, -0.5),))
    (content,) = chat_logprobs(NAMES, [ScoredToken(special, entry, 0)])["content"]
    assert (content["token"], bytes(content["bytes"])) == (name, name.encode())
    assert content["top_logprobs"][0]["token"] == name


def test_minus_infinity_is_a_number() -> None:
    fields = completion_logprobs(NAMES, scored("a", (ids_of("b")[0], -math.inf), chosen=-math.inf))
    assert fields["token_logprobs"] == [-9999.0]
    assert fields["top_logprobs"] == [{"a": -9999.0, "b": -9999.0}]


def test_the_token_that_is_there_is_always_among_the_top() -> None:
    (b,) = ids_of("b")
    assert completion_logprobs(NAMES, scored("a"))["top_logprobs"] == [{"a": -1.0}]
    assert completion_logprobs(NAMES, scored("a", (b, -0.2)))["top_logprobs"] == [{"a": -1.0, "b": -0.2}]
    assert completion_logprobs(NAMES, scored("b", (b, -1.0)))["top_logprobs"] == [{"b": -1.0}]


def test_offsets_are_shifted_by_what_stands_before() -> None:
    assert completion_logprobs(NAMES, scored("ab"), shift=7)["text_offset"] == [7, 8]


def test_a_prompts_first_token_is_predicted_by_nothing() -> None:
    ids = ids_of("abc")
    entry = TokenLogprobs(-2.0, ((ids[0], -0.1), (ids[1], -0.2)), rank=9)
    tokens = list(scored_prompt(TOKENIZER, ids, [entry, entry], num_top=1))
    assert [token.offset for token in tokens] == [0, 1, 2]
    fields = completion_logprobs(NAMES, tokens)
    assert (fields["token_logprobs"][0], fields["top_logprobs"][0]) == (None, None)
    assert fields["top_logprobs"][2] == {"a": -0.1, "c": -2.0}
    first, second, third = prompt_logprobs(NAMES, ids, [entry, entry])
    assert first is None
    assert second is not None
    assert third is not None
    assert {key: value.rank for key, value in third.items()} == {str(ids[0]): 1, str(ids[1]): 2, str(ids[2]): 9}
    assert second[str(ids[1])].rank == 9


def test_the_token_that_is_there_comes_first() -> None:
    """Clients of vLLM's take the first entry for it."""
    ids = ids_of("abc")
    entry = TokenLogprobs(-2.0, ((ids[0], -0.1), (ids[1], -0.2), (ids[2], -2.0)), rank=3)
    for top in completion_logprobs(NAMES, [ScoredToken(ids[2], entry, 0)])["top_logprobs"]:
        assert list(top) == ["c", "a", "b"]
    _, second, third = prompt_logprobs(NAMES, ids, [entry, entry])
    assert second is not None
    assert third is not None
    assert [list(second), list(third)] == [[str(ids[i]) for i in order] for order in ((1, 0, 2), (2, 0, 1))]


def test_tokens_may_be_named_by_their_ids_so_that_none_hides_another() -> None:
    first, second = ids_of("你")[:2]
    names = TokenNames(TOKENIZER, as_ids=True)
    entry = TokenLogprobs(-1.0, ((second, -0.5),))
    fields = completion_logprobs(names, [ScoredToken(first, entry, 0)])
    assert fields["tokens"] == [f"token_id:{first}"]
    assert fields["top_logprobs"] == [{f"token_id:{second}": -0.5, f"token_id:{first}": -1.0}]
    (content,) = chat_logprobs(names, [ScoredToken(first, entry, 0)])["content"]
    assert (content["token"], content["top_logprobs"][0]["token"]) == (f"token_id:{first}", f"token_id:{second}")
    assert bytes(content["bytes"]) == "你".encode()[:1]
