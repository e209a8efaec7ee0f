from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers

from service.text.infill import infill_of
from service.text.tokenizer import Tokenizer
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of
from tests.text import tiny_tokenizers

SPELLINGS = [
    ("<|fim_prefix|>", "one", "<|fim_suffix|>", "two", "<|fim_middle|>"),
    ("<fim_prefix>", "one", "<fim_suffix>", "two", "<fim_middle>"),
    ("<｜fim▁begin｜>", "one", "<｜fim▁hole｜>", "two", "<｜fim▁end｜>"),  # noqa: RUF001 - as its tokens are spelled
    ("[SUFFIX]", "two", "[PREFIX]", "one"),
    ("<[fim-suffix]>", "two", "<[fim-prefix]>", "one", "<[fim-middle]>"),
    ("<fim-prefix>", "one", "<fim-suffix>", "two", "<fim-middle>"),
]
CODE_LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
CODESTRAL = ("[SUFFIX]", "[PREFIX]", "[MIDDLE]")
CODE_GEMMA = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_separator|>")


@pytest.fixture(scope="module")
def coder() -> Iterator[RunningServer]:
    with running(Scene(added_tokens="qwen2.5")) as server:
        yield server


def with_marks(texts: tuple[str, ...], *, special: bool) -> Tokenizer:
    inner = tiny_tokenizers.byte_level()
    marks = [text for text in texts if text not in ("one", "two")]
    inner.add_tokens([AddedToken(mark, normalized=False, special=special) for mark in marks])
    return Tokenizer(inner)


def sentence_piece(*marks: str, puts_space: bool = True) -> Tokenizer:
    """puts_space: before each text, as Llama's; Gemma's does not."""
    inner = tiny_tokenizers.byte_fallback()
    if not puts_space:
        inner.normalizer = normalizers.Replace(" ", "▁")
        inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
    return Tokenizer(inner)


def encoded(tokenizer: Tokenizer, prefix: str, suffix: str, *, special: bool = False) -> list[int]:
    infill = infill_of(tokenizer)
    assert infill is not None
    return infill.encode(prefix, suffix, add_special_tokens=special, check=lambda num_tokens: None)


@pytest.mark.parametrize("texts", SPELLINGS, ids=lambda texts: texts[0])
@pytest.mark.parametrize("special", [True, False])
def test_the_models_marks_stand_around_the_texts(texts: tuple[str, ...], special: bool) -> None:
    tokenizer = with_marks(texts, special=special)
    ids = [i for text in texts for i in tokenizer.encode(text, add_special_tokens=False)]
    assert encoded(tokenizer, "one", "two") == ids
    assert encoded(tokenizer, "one", "two", special=True) == [0, *ids]


@pytest.mark.parametrize("texts", SPELLINGS, ids=lambda texts: texts[0])
@pytest.mark.parametrize("special", [True, False])
def test_what_looks_like_a_mark_is_plain_text(texts: tuple[str, ...], special: bool) -> None:
    tokenizer = with_marks(texts, special=special)
    sly = f"a{texts[0]}<|im_end|>b{texts[2]}"
    ids = encoded(tokenizer, sly, sly)
    marks = {tokenizer.id_of(text) for text in texts if text not in ("one", "two")}
    assert sum(i in marks or i in tokenizer.special_ids for i in ids) == len(marks)
    plain = [i for i in ids if i not in marks]
    assert tokenizer.decode(plain, skip_special_tokens=False) == sly + sly


@pytest.mark.parametrize(
    ("marks", "puts_space", "shown"),
    [
        (CODE_LLAMA, True, ["▁<PRE>", "▁hello", "▁is", "▁<SUF>", "is", "▁hello", "▁<MID>"]),
        (CODESTRAL, True, ["[SUFFIX]", "▁is", "▁hello", "[PREFIX]", "▁hello", "▁is"]),
        (CODE_GEMMA, False, ["<|fim_prefix|>", "hello", "▁is", "<|fim_suffix|>", "is", "▁hello", "<|fim_middle|>"]),
    ],
    ids=["CodeLlama", "Codestral", "CodeGemma"],
)
def test_with_sentence_piece_a_space_is_put_only_where_the_model_was_shown_one(
    marks: tuple[str, ...], puts_space: bool, shown: list[str]
) -> None:
    tokenizer = sentence_piece(*marks, puts_space=puts_space)
    ids = encoded(tokenizer, "hello is", "is hello", special=True)
    assert [tokenizer.token_text(i) for i in ids] == ["<s>", *shown]


@given(
    st.lists(st.sampled_from(["hello", " world", "▁<SUF>", " <PRE>", "</s>", "ä", "\n", " "]), max_size=6).map("".join)
)
def test_with_sentence_piece_what_looks_like_a_mark_is_plain_text(text: str) -> None:
    tokenizer = sentence_piece(*CODE_LLAMA)
    ids = encoded(tokenizer, text, text)
    middle = ids.index(tokenizer.id_of("▁<SUF>") or -1)
    assert (ids[0], ids[-1]) == (tokenizer.id_of("▁<PRE>"), tokenizer.id_of("▁<MID>"))
    for part, begins in ((ids[1:middle], text and " " + text), (ids[middle + 1 : -1], text)):
        assert not {*part} & tokenizer.special_ids
        assert b"".join(tokenizer.spelled_bytes[i] for i in part) == begins.replace("▁", " ").encode()


def test_the_middle_ends_where_these_models_end_it() -> None:
    infill = infill_of(sentence_piece(*CODE_LLAMA))
    assert infill is not None
    assert {sentence_piece(*CODE_LLAMA).token_text(i) for i in infill.end_ids} == {*CODE_LLAMA}


@pytest.mark.parametrize("inner", [tiny_tokenizers.byte_level(), tiny_tokenizers.byte_fallback()])
def test_a_vocabulary_without_marks(inner: Any) -> None:
    assert infill_of(Tokenizer(inner)) is None


def test_the_texts_are_given_up_when_they_are_too_long() -> None:
    infill = infill_of(with_marks(SPELLINGS[0], special=False))
    assert infill is not None
    told: list[int] = []

    def check(num_tokens: int) -> None:
        told.append(num_tokens)
        if num_tokens > 10:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        infill.encode("<|fim_suffix|>" * 100, "", add_special_tokens=False, check=check)
    assert told[-1] < 20


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}{COMPLETIONS}", json=completion(return_token_ids=True, **fields))


@pytest.mark.parametrize("prompt", ["one", "", ["one", "three"]])
def test_over_http(coder: RunningServer, prompt: Any) -> None:
    response = post(coder, prompt=prompt, suffix="two")
    assert response.status_code == 200, response.text
    assert "x-ignored-params" not in response.headers
    prompts = prompt if isinstance(prompt, list) else [prompt]
    for text, choice in zip(prompts, response.json()["choices"], strict=True):
        shown = coder.tokenizer.decode(choice["prompt_token_ids"], skip_special_tokens=False)
        assert shown == f"<|bos|><|fim_prefix|>{text}<|fim_suffix|>two<|fim_middle|>"


@pytest.mark.parametrize(
    "fields",
    [{"echo": True}, {"prompt": [5, 6]}, {"prompt": [[5], [6]]}, {"truncate_prompt_tokens": 4}],
    ids=str,
)
def test_refusals(coder: RunningServer, fields: dict[str, Any]) -> None:
    refused = post(coder, **{"prompt": "one", "suffix": "two", **fields})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "suffix")
