"""What docs/models.md says of families, for one family per feature; `families_table.py` tries all.

Served: 24 greedy tokens of some prompts, in chunks beside other requests' decodes, alone and all at once, equal
`generate`'s. Refused: with a message that says why.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equivalence.families_table import TABLE, read_table
from tests.equivalence.family_list import FAMILIES, Family
from tests.equivalence.family_run import NUM_PROMPTS, run_family
from tests.examples import examples

FEWER = min(NUM_PROMPTS, examples(3))
"""Prompts: the shortest, the longest and one between them."""
REPEATS_ITSELF = "Gemma 3 (with vision)"
"""Says too few different tokens to fewer prompts than all."""
BY_NAME = {family.name: family for family in FAMILIES}
SAMPLE = (
    "Gemma 2",  # a soft cap, windows of some layers, embeddings that are scaled
    "Phi-4-mini",  # weights that are merged in the checkpoint, heads that turn in part
    "Cohere",  # one norm a layer, interleaved rotary dims
    "StableLM 2",  # layers that hand no further arguments down
    "Pythia, GPT-NeoX",  # names of its own, heads interleaved in one matrix
    "DeepSeek V3, R1",  # latent attention: values narrower than keys; experts by matrices of their own; a buffer
    "Granite 3 MoE",  # experts in one tensor
    "Granite 4 Micro",  # a class of hybrids, without any such layer
    "Gemma 3n (text)",  # a buffer that its inner model fills, layers that use others' keys
    "Gemma 3 (with vision)",  # its text part
    "Qwen2.5-VL",
)


def family(name: str) -> Family:
    return next(each for each in FAMILIES if each.name.startswith(name) or name in each.model)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_served_family_says_what_generate_says(name: str, tmp_path: Path):
    run = run_family(family(name), tmp_path, num_prompts=NUM_PROMPTS if name == REPEATS_ITSELF else FEWER)
    assert run.served_by is not None, run.refusal
    assert run.is_equal
    assert run.num_different > 20, "text of a few tokens would prove little"


def test_so_does_one_with_a_native_file_by_transformers_modules(tmp_path: Path):
    with_a_soft_cap_and_windows_of_some_layers = family("Gemma 2")
    run = run_family(with_a_soft_cap_and_windows_of_some_layers, tmp_path, "transformers", num_prompts=FEWER)
    assert (run.served_by, run.is_equal) == ("transformers", True)


@pytest.mark.parametrize(
    "name",
    [
        "SmolLM3",
        "Phi-2",  # biases, and an MLP without a gate
        "Pythia, GPT-NeoX",  # q, k and v in one matrix
        "Command-R7B",
        "EXAONE 4",
    ],
)
def test_in_fp8_it_says_what_generate_says_by_rounded_weights(name: str, tmp_path: Path):
    run = run_family(family(name), tmp_path, quantization="fp8", num_prompts=FEWER)
    assert (run.served_by, run.is_equal, run.refusal) == ("transformers", True, "")


@pytest.mark.parametrize("name", ["DeepSeek V3, R1", "Granite 3 MoE"])
def test_a_mixture_by_transformers_modules_is_not_served_in_fp8_in_part(name: str, tmp_path: Path):
    run = run_family(family(name), tmp_path, quantization="fp8")
    assert run.served_by is None
    assert "quantization: " in run.refusal and "whose experts cannot be quantized; serve the unquantized" in run.refusal


@pytest.mark.parametrize("name", [each.name for each in FAMILIES if each.refusal is not None])
def test_a_family_with_another_memory_is_refused_by_name(name: str, tmp_path: Path):
    run = run_family(BY_NAME[name], tmp_path)
    assert run.served_by is None
    assert BY_NAME[name].model in run.refusal and str(BY_NAME[name].refusal) in run.refusal


def test_the_table_has_every_family_and_forty_of_them_are_served():
    rows = read_table(TABLE.read_text())
    assert list(rows) == [each.name for each in FAMILIES]
    assert sum("equal" in cells[-1] for cells in rows.values()) >= 40
