from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.errors import ModelLoadError
from service.text.tokenizer import Tokenizer
from service.text.tokenizer_config import TokenizerConfig, read_tokenizer_config
from tests.text.test_byte_level_bpe import folder_with

FILES = ["tokenizer_config.json", "special_tokens_map.json"]


def test_a_folder_needs_neither_file(tmp_path: Path) -> None:
    assert read_tokenizer_config(tmp_path) == TokenizerConfig({}, {})


def test_a_token_is_its_text_or_an_object_with_it_and_the_config_goes_before_the_map(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None, "add_bos_token": True, "x": "y"}
    (tmp_path / FILES[0]).write_text(json.dumps(config))
    older = {"bos_token": "<old>", "pad_token": "<p>", "additional_special_tokens": ["<a>"], "sep_token": {"text": "s"}}
    (tmp_path / FILES[1]).write_text(json.dumps(older))
    read = read_tokenizer_config(tmp_path)
    assert read.options == config
    assert read.special_tokens == {"bos_token": "<b>", "eos_token": "<e>", "pad_token": "<p>"}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("text", "fault"), [("{", "is not JSON"), ("[]", "is not a JSON object")])
def test_a_broken_file_is_named(file: str, text: str, fault: str, tmp_path: Path) -> None:
    folder_with(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ModelLoadError, match=f"^{tmp_path / file} {fault}"):
        Tokenizer.from_folder(tmp_path)
