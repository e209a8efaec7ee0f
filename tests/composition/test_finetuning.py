from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.composition.finetuning import USUAL_TOKENS_ON_CPU, model_text, served_base
from service.composition.model_parts import ModelParts
from service.finetune.trainable_model import check_trainable, parameter_layout
from service.finetune.trained_model import activation_arena
from service.settings.settings import Settings
from tests.composition.conftest import SMALL
from tests.equivalence.hf_model import save_random_model
from tests.finetune.served import served_model

SETTINGS = Settings(**SMALL, max_lora_rank=8)


def test_jobs_may_ask_for_what_the_model_and_its_memory_have(parts: ModelParts):
    base = served_base(SETTINGS, parts.loaded)
    assert (base.name, base.weights, base.max_rank) == ("headrace-quickstart", parts.loaded.weights, 8)
    assert base.linears == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
    assert base.refusal is None
    assert 2 <= base.usual_length <= base.max_length <= parts.loaded.max_model_len
    roomy = served_base(SETTINGS, replace(parts.loaded, num_blocks=10**6))
    assert roomy.max_length == parts.loaded.max_model_len > base.max_length
    assert roomy.usual_length == roomy.packed_length == USUAL_TOKENS_ON_CPU


def test_a_micro_batch_of_several_examples_leaves_half_of_the_blocks_to_requests(parts: ModelParts):
    """However few there are; a single long example may take all."""
    model = check_trainable(parts.loaded.model)
    arena = activation_arena(model, parameter_layout(model, (), SETTINGS.max_lora_rank))
    for num_blocks in (50, 100, 200):
        base = served_base(SETTINGS, replace(parts.loaded, num_blocks=num_blocks))
        assert base.packed_length is not None
        assert arena.num_bytes(base.packed_length) <= num_blocks * parts.loaded.block_bytes * 0.52
        assert base.packed_length < base.max_length


def test_a_model_that_cannot_be_trained_says_why(parts: ModelParts, tmp_path: Path):
    gpt2 = served_model(save_random_model("gpt2", tmp_path))
    base = served_base(SETTINGS, replace(parts.loaded, model=gpt2))
    assert base.refusal is not None and "cannot be trained" in base.refusal


@pytest.mark.parametrize("ends", [frozenset({5, 3}), frozenset()])
def test_a_completion_ends_with_an_end_of_the_model(parts: ModelParts, ends: frozenset[int]):
    generation = replace(parts.loaded.generation, eos_token_ids=ends)
    text = model_text(SETTINGS, replace(parts, loaded=replace(parts.loaded, generation=generation)))
    assert text.end_id == min(ends, default=None)
