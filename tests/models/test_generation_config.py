from __future__ import annotations

import json

import pytest

from service.errors import ModelLoadError
from service.models.generation_config import GenerationConfig, load_generation_config
from service.models.model_config import parse_model_config
from tests.models.test_model_config import FIELDS

CONFIG = parse_model_config({**FIELDS, "eos_token_id": 2, "bos_token_id": 1})


def defaults(tmp_path, fields):
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    return load_generation_config(tmp_path, CONFIG)


def test_without_a_file_the_model_config_speaks(tmp_path):
    assert load_generation_config(tmp_path, CONFIG) == GenerationConfig(frozenset({2}), 1, None, None, None, None, None)


def test_the_file_comes_first(tmp_path):
    fields = {"eos_token_id": [7, 8], "bos_token_id": 6, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    fields |= {"min_p": 0.05, "repetition_penalty": 1.1}
    assert defaults(tmp_path, fields) == GenerationConfig(frozenset({7, 8}), 6, 0.6, 0.95, 20, 0.05, 1.1)


def test_values_out_of_range_count_as_not_given(tmp_path):
    fields = {"eos_token_id": None, "temperature": -1, "top_p": 0, "top_k": 0, "min_p": 2, "repetition_penalty": 0}
    assert defaults(tmp_path, fields) == GenerationConfig(frozenset({2}), 1, None, None, None, None, None)


def test_an_end_outside_the_vocabulary_is_none(tmp_path):
    outside = [-1, CONFIG.vocab_size, 99_999]
    assert defaults(tmp_path, {"eos_token_id": [7, *outside]}).eos_token_ids == {7}
    assert defaults(tmp_path, {"eos_token_id": outside}).eos_token_ids == frozenset()


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        load_generation_config(tmp_path, CONFIG)
