from pathlib import Path

import pytest

from loadtest.dummy_model import NUM_SPECIAL_TOKENS, dummy_llama, with_word_tokenizer, word_prompt
from tests.loadtest.tiny_llama import LLAMA_TINY

transformers = pytest.importorskip("transformers")


def test_folder_is_made_once_and_loads_in_transformers(tmp_path: Path) -> None:
    folder = dummy_llama(LLAMA_TINY, tmp_path)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert dummy_llama(LLAMA_TINY, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == LLAMA_TINY.vocab_size
    assert model.config.tie_word_embeddings


def test_seeds_reproduce(tmp_path: Path) -> None:
    one, two, other = (
        (dummy_llama(LLAMA_TINY, tmp_path / name, seed) / "model.safetensors").read_bytes()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one == two != other


def test_word_tokenizer_is_exact(tmp_path: Path) -> None:
    folder = with_word_tokenizer(dummy_llama(LLAMA_TINY, tmp_path))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = list(range(NUM_SPECIAL_TOKENS, LLAMA_TINY.vocab_size))
    assert tokenizer(word_prompt(ids))["input_ids"] == ids
    assert (folder / "model.safetensors").exists()
