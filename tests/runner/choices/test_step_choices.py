from __future__ import annotations

import json

import pytest

from service.layers.linear_method import KernelRows
from service.runner.choices.step_choices import StepChoices
from tests.runner.choices.some_choices import SIZES, made_for, some_choices


def test_what_is_written_is_read():
    choices = some_choices()
    read = StepChoices.from_json(choices.to_json())
    assert read == choices
    assert read.to_json() == choices.to_json()
    assert json.loads(choices.to_json())["version"] == 1


CORRUPT = {
    "not JSON": (lambda text: text[:-20], "Invalid JSON: .* at line"),
    "not an object": (lambda text: "[1]", "Input should be an object"),
    "not text": (lambda text: b"\xff\xfe", "Invalid JSON"),
    "another format": (lambda text: text.replace('"version": 1', '"version": 2'), "^version: "),
    "a type": (lambda text: text.replace('"max_num_seqs": 8', '"max_num_seqs": "8"'), r"^made_for\.max_num_seqs: "),
    "missing": (lambda text: text.replace('"device": "NVIDIA H200",', ""), r"^made_for\.device: Field required"),
    "unknown": (lambda text: text.replace('"skinny"', '"skiny"'), r"^linears\.96x64\.skiny: unknown field"),
    "no form": (lambda text: text.replace('"both"', '"bth"'), r"linears\.300x64.*'plain', 'onednn', 'loops' or 'both'"),
    "too many": (
        lambda text: text.replace('"skinny": 8', '"skinny": 257'),
        r"^linears\.96x64.* 257 rows, above the limit of 256",
    ),
    "a size": (lambda text: text.replace("[\n      8,\n      8\n    ]", "[8]"), r"^graphs\.1\.1: Field required"),
    "shapes": (
        lambda text: text.replace('"96x64": 2', '"97x64": 2'),
        "linears and made_for.weights do not have the same",
    ),
}


@pytest.mark.parametrize(("damage", "place"), CORRUPT.values(), ids=CORRUPT)
def test_a_damaged_text_is_refused_naming_the_place(damage, place):
    text = some_choices().to_json()
    damaged = damage(text)
    assert damaged != text
    with pytest.raises(ValueError, match=place):
        StepChoices.from_json(damaged)


def test_every_shape_has_its_choice():
    with pytest.raises(ValueError, match="same shapes"):
        StepChoices(made_for(), {"96x64": KernelRows()}, SIZES)


def test_it_reads_as_one_line():
    assert str(some_choices()) == (
        "bfloat16; 96x64: skinny up to 8, add+norm 1-16, gated 72-128; 300x64: both; 3 sizes of CUDA graphs"
    )
