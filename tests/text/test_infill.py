from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken

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
]


@pytest.fixture(scope="module")
def coder() -> Iterator[RunningServer]:
    with running(Scene(added_tokens="qwen2.5")) as server:
        yield server


def with_marks(texts: tuple[str, ...], *, special: bool) -> Tokenizer:
    inner = tiny_tokenizers.byte_level()
    marks = [text for text in texts if text not in ("one", "two")]
    inner.add_tokens([AddedToken(mark, normalized=False, special=special) for mark in marks])
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
