from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from service.errors import ModelLoadError
from tests.models.checkpoints import llama
from tests.runner.loading import load


def damage(folder: Path, change: Callable[[str, Tensor], object]) -> Path:
    """Change a checkpoint's tensors in place; `change` is given each name and tensor."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name, tensor in weights.items():
        change(name, tensor)
    save_file(weights, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_can_answer_nothing_is_refused_and_the_weight_named(tmp_path, number, dtype):
    name = "model.layers.1.self_attn.v_proj.weight"
    folder = damage(llama(tmp_path), lambda each, tensor: tensor.fill_(number) if each == name else None)
    with pytest.raises(ModelLoadError, match=rf"model: its logits are not finite, .* NaN or infinity in {name}$"):
        load(folder, dtype=dtype)


def test_so_is_one_of_nothing_but_nan(tmp_path):
    folder = damage(llama(tmp_path), lambda _, tensor: tensor.fill_(math.nan))
    with pytest.raises(ModelLoadError, match=r"NaN or infinity in .*lm_head.weight.* and \d+ more"):
        load(folder)


def test_and_one_whose_finite_weights_overflow(tmp_path):
    ends = {"model.norm.weight", "lm_head.weight"}
    folder = damage(llama(tmp_path), lambda name, tensor: tensor.fill_(1e38) if name in ends else None)
    with pytest.raises(ModelLoadError, match=r"model: its logits are not finite, .* its values overflow"):
        load(folder)


def test_a_model_that_fails_with_one_token_alone_is_served_and_the_log_tells(tmp_path, caplog):
    def spoil(name: str, tensor: Tensor) -> None:
        if name == "model.embed_tokens.weight":
            tensor[0] = math.nan

    with caplog.at_level(logging.WARNING):
        loaded = load(damage(llama(tmp_path), spoil))
    assert "the model's logits are not finite after these tokens: [0]" in caplog.text
    assert not len(loaded.runner._sampling_rows), "the prompts that were tried are forgotten"


@pytest.mark.parametrize(
    "few", [{"max_num_seqs": 1}, {"block_size": 1}, {"memory_bytes": 1 << 14}, {"max_num_batched_tokens": 2}]
)
def test_a_sound_model_is_tried_whatever_little_there_is_room_for(tmp_path, few, caplog):
    with caplog.at_level(logging.WARNING):
        load(llama(tmp_path), **few)
    assert caplog.text == ""
