"""Against transformers' GPT2Tokenizer, over the same two files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import GPT2Tokenizer

from service.errors import ModelLoadError
from service.text.byte_level_bpe import byte_level_bpe, has_byte_level_bpe
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TEXTS = ["Hello world", " a  b\n\nc", "naïve café ☕", "one</s>two", "", "0123456789" * 3, "<|endoftext|>x"]


def folder_with(folder: Path, extra: tuple[str, ...] = ("</s>", "<pad>"), **config: object) -> Path:
    """The tiny tokenizer's vocabulary and merges as two files, special tokens at the end of the vocabulary."""
    model = json.loads(tiny_tokenizers.byte_level_json())["model"]
    vocabulary = dict(model["vocab"])
    for text in extra:
        vocabulary[text] = max(vocabulary.values()) + 1
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


OPT = {
    "bos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": True, "rstrip": False},
    "eos_token": "</s>",
    "unk_token": "</s>",
    "pad_token": "<pad>",
    "add_bos_token": True,
}


def theirs(folder: Path, **options: object) -> GPT2Tokenizer:
    return GPT2Tokenizer.from_pretrained(folder, **options)


@pytest.mark.parametrize("text", TEXTS)
def test_opts_tokenizer_begins_with_its_end_token(text, tmp_path):
    ours, oracle = Tokenizer.from_folder(folder_with(tmp_path, **OPT)), theirs(tmp_path)
    assert ours.encode(text, add_special_tokens=True) == oracle(text)["input_ids"]
    assert ours.encode(text, add_special_tokens=True)[0] == oracle.bos_token_id
    assert ours.encode(text, add_special_tokens=False) == oracle(text, add_special_tokens=False)["input_ids"]
    assert ours.special_ids == {oracle.bos_token_id, oracle.pad_token_id}
    ids = oracle(text)["input_ids"]
    assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2s_tokenizer_adds_nothing(text, tmp_path):
    ours, oracle = Tokenizer.from_folder(folder_with(tmp_path, ("<|endoftext|>",))), theirs(tmp_path)
    assert ours.encode(text, add_special_tokens=True) == oracle(text)["input_ids"]
    assert ours.special_ids == {oracle.eos_token_id}


def test_special_tokens_may_stand_in_their_own_file(tmp_path):
    folder = folder_with(tmp_path)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": None}))
    assert [t.content for t in byte_level_bpe(folder).get_added_tokens_decoder().values()] == ["</s>"]


def test_both_files_are_needed(tmp_path):
    folder_with(tmp_path)
    assert has_byte_level_bpe(tmp_path)
    (tmp_path / "merges.txt").unlink()
    assert not has_byte_level_bpe(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json, nor vocab\.json and merges\.txt"):
        Tokenizer.from_folder(tmp_path)


def test_a_broken_file_is_named(tmp_path):
    folder_with(tmp_path)
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"vocab\.json"):
        Tokenizer.from_folder(tmp_path)
