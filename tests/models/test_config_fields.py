from __future__ import annotations

import json

import pytest

from service.errors import ModelLoadError
from service.models.config_fields import ConfigFields, read_json, token_ids

FIELDS = ConfigFields(
    {"size": 3, "half": 0.5, "whole": 2.0, "flag": False, "null": None, "zero": 0, "word": "x", "nan": float("nan")},
    "some.json",
)


def test_what_is_written_is_read():
    assert (FIELDS.size("size"), FIELDS.number("half"), FIELDS.size("whole")) == (3, 0.5, 2)
    assert FIELDS.flag("flag", True) is False
    assert FIELDS.count("zero", 7) == 0
    assert "null" in FIELDS and "missing" not in FIELDS


@pytest.mark.parametrize("name", ["null", "missing"])
def test_what_is_not_written_or_null_has_its_default(name):
    assert (FIELDS.size(name, 4), FIELDS.number(name, 0.25), FIELDS.count(name, 5)) == (4, 0.25, 5)
    assert FIELDS.flag(name) is False
    assert FIELDS.get(name) is None
    FIELDS.require(name, True)
    with pytest.raises(ModelLoadError, match=rf"some\.json: {name} is missing"):
        FIELDS.size(name)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (FIELDS.size, "half"),
        (FIELDS.size, "zero"),
        (FIELDS.size, "flag"),
        (FIELDS.number, "word"),
        (FIELDS.number, "nan"),
        (FIELDS.flag, "size"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(read, name):
    with pytest.raises(ModelLoadError, match=rf"some\.json: {name} must be"):
        read(name)


def test_a_flag_has_the_value_that_is_served():
    FIELDS.require("flag", False)
    with pytest.raises(ModelLoadError, match="flag False is not supported, only True"):
        FIELDS.require("flag", True)


@pytest.mark.parametrize(
    ("written", "ids"), [(5, {5}), ([5, 6], {5, 6}), (None, set()), (True, set()), ([5, None, "6"], {5})]
)
def test_special_tokens_are_an_id_or_several(written, ids):
    assert token_ids(written) == ids


@pytest.mark.parametrize("text", ["{", "[1]", json.dumps("x")])
def test_a_file_that_holds_no_object_is_refused_by_name(tmp_path, text):
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ModelLoadError, match=r"^some\.json: "):
        read_json(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(ModelLoadError, match=r"some\.json: is not in the model folder"):
        read_json(tmp_path / "some.json")
