from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from service.errors import ModelLoadError
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

BYTE_LEVEL = Tokenizer(tiny_tokenizers.byte_level())
ORACLE = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizers.byte_level())


@given(st.text(max_size=60))
def test_encodes_completions_as_transformers_does(text: str) -> None:
    assert BYTE_LEVEL.encode(text, add_special_tokens=True) == ORACLE(text)["input_ids"]


@pytest.mark.parametrize("text", ["a<|im_end|>b", "<|bos|><|bos|>", "<|im_start|>user\nhi<|im_end|>"])
def test_special_tokens_in_a_completion_prompt_are_special(text: str) -> None:
    assert BYTE_LEVEL.encode(text, add_special_tokens=True) == ORACLE(text)["input_ids"]


def test_post_processor_adds_its_tokens_only_when_asked() -> None:
    assert BYTE_LEVEL.encode("hello", add_special_tokens=True)[0] == 0
    assert 0 not in BYTE_LEVEL.encode("hello", add_special_tokens=False)


@given(st.text(max_size=60))
def test_decodes_what_it_encodes(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=True)
    assert BYTE_LEVEL.decode(ids) == ORACLE.decode(ids, skip_special_tokens=True)


def test_encoding_does_not_hold_the_interpreters_lock() -> None:
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks[0] += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    before = ticks[0]
    BYTE_LEVEL.encode("hello world lazy dog " * 50_000, add_special_tokens=True)
    during = ticks[0] - before
    done.set()
    ticking.join()
    assert during > 10


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
@given(st.lists(st.sampled_from(["hello", " world", " ", "<s>", "</s>", "is"]), max_size=8).map("".join))
def test_a_space_before_the_text_is_put_where_the_library_puts_it(scheme: str, text: str) -> None:
    tokenizer = tiny_tokenizers.byte_fallback()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert Tokenizer(tokenizer).encode(text, add_special_tokens=False) == expected
    assert Tokenizer(tokenizer).encode_rendered(text, {"unused": ""}) == expected


def test_knows_its_special_tokens_and_its_size() -> None:
    assert BYTE_LEVEL.special_ids == {0, 1, 2}
    assert BYTE_LEVEL.num_tokens == len(ORACLE)


def test_truncation_and_padding_written_in_the_file_are_ignored() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    assert Tokenizer(tokenizer).encode("one two three four", add_special_tokens=True) == BYTE_LEVEL.encode(
        "one two three four", add_special_tokens=True
    )


def test_loads_from_a_folder(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(tiny_tokenizers.write_folder(tmp_path))
    assert tokenizer.encode("hello", add_special_tokens=False) == BYTE_LEVEL.encode("hello", add_special_tokens=False)


def test_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_special_tokens_can_be_shown() -> None:
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    assert tokenizer.decode([1, 75], skip_special_tokens=False) == "<|im_start|>" + tokenizer.decode([75])
    assert tokenizer.token_text(1) == "<|im_start|>"
    assert tokenizer.token_text(10**6) == ""


@given(st.text(max_size=200))
def test_no_text_has_fewer_tokens_than_the_least(text: str) -> None:
    least = BYTE_LEVEL.least_num_tokens(len(text))
    assert (least > 0) == bool(text)
    assert least <= len(BYTE_LEVEL.encode(text, add_special_tokens=False))


def test_nothing_is_known_of_the_least_where_a_special_token_swallows_spaces() -> None:
    inner = tiny_tokenizers.byte_level()
    inner.add_special_tokens([AddedToken("<|end|>", rstrip=True)])
    text = "<|end|>" + " " * 1000
    assert Tokenizer(inner).least_num_tokens(len(text)) <= len(Tokenizer(inner).encode(text, add_special_tokens=False))


def test_nothing_is_known_of_the_least_where_a_normalizer_may_drop_text() -> None:
    inner = tiny_tokenizers.byte_level()
    plain = Tokenizer(inner).least_num_tokens(10**6)
    inner.normalizer = normalizers.NFC()
    assert 0 < Tokenizer(inner).least_num_tokens(10**6) <= -(-plain // 4)
    inner.normalizer = normalizers.StripAccents()
    assert Tokenizer(inner).least_num_tokens(10**6) == 0
    assert Tokenizer(tiny_tokenizers.byte_fallback()).least_num_tokens(10**6) == 0


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.booleans())
def test_many_ids_are_decoded_as_few_are(ids: list[int], skip: bool) -> None:
    many = ids * 1100
    whole = tiny_tokenizers.byte_level().decode(many, skip_special_tokens=skip)
    assert BYTE_LEVEL.decode(many, skip_special_tokens=skip) == whole


def test_decoding_many_ids_does_not_hold_the_interpreter() -> None:
    ids = [75] * 3_000_000
    longest_s, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest_s
        while not done.is_set():
            began_s = time.perf_counter()
            time.sleep(0.001)
            longest_s = max(longest_s, time.perf_counter() - began_s)

    watching = threading.Thread(target=watch)
    watching.start()
    began_s = time.perf_counter()
    BYTE_LEVEL.decode(ids)
    taken_s = time.perf_counter() - began_s
    done.set()
    watching.join()
    assert longest_s < taken_s / 2
