"""A micro-batch's gradients are those of autograd through PEFT's model: one test for the model, its blocks and all
that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from service.errors import InvalidRequest
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import LoraParameters, first_state
from service.finetune.packing import packed
from service.finetune.trainable_model import check_trainable, parameter_layout
from service.finetune.trained_model import TrainedModel, rows_per_loss_step
from service.finetune.training_state import TrainingState
from tests.equivalence.hf_model import SMALL
from tests.finetune.peft_training import PeftTraining
from tests.finetune.served import random_examples, served_model

EXAMPLES = random_examples(5, vocab_size=400, longest=60)
(BATCH,) = packed(EXAMPLES, 320)


def state_with_b(folder: Path, targets: Sequence[str]) -> TrainingState:
    """B is not zero, so that A has a gradient."""
    state = first_state(parameter_layout(served_model(folder), targets, rank=4), seed=0)
    for _, b in state.matrices().values():
        b.normal_(0, 0.1)
    return state


def gradients_of(
    folder: Path, state: TrainingState, dtype: torch.dtype = torch.float32, rows_per_loss_step: int = 320
) -> tuple[float, LoraParameters]:
    """Of the mean loss of BATCH, with scale 2; and that loss."""
    parameters = LoraParameters(state, dtype, torch.device("cpu"))
    model = check_trainable(served_model(folder, dtype))
    trained = TrainedModel(model, parameters, scale=2.0, rows_per_loss_step=rows_per_loss_step)
    memory = torch.full((trained.arena.num_bytes(320) // 4,), float("nan")).view(torch.uint8)
    with torch.inference_mode():
        computing = trained.begin(BATCH, memory)
        for layer in range(2):
            computing.forward(layer)
        for part in range(-(-320 // rows_per_loss_step)):
            computing.loss(part, 1 / BATCH.num_trained)
        for layer in (1, 0):
            computing.backward(layer, accumulates=True)
    assert computing.sums is not None
    return computing.sums.losses.item() / BATCH.num_trained, parameters


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", ()),
        ("qwen2", ()),
        ("qwen3", ()),
        ("mistral", ()),
        ("llama", ("q_proj", "v_proj")),
        ("qwen3", ("o_proj", "up_proj")),
        ("llama", ("down_proj",)),
    ],
)
def test_gradients_are_autograds(family: str, targets: tuple[str, ...], model_folders: Mapping[str, Path]):
    torch.manual_seed(0)
    folder = model_folders[family]
    state = state_with_b(folder, targets)
    hyperparameters = Hyperparameters(learning_rate=1, rank=4, alpha=8, targets=targets)
    oracle = PeftTraining(folder, hyperparameters, state.matrices())
    expected = oracle.backward(EXAMPLES)
    loss, parameters = gradients_of(folder, state)
    assert loss == pytest.approx(expected, rel=1e-6)
    for name, pair in oracle.gradients().items():
        for got, want in zip(state.layout.matrices(parameters.gradient)[name], pair, strict=True):
            assert torch.cosine_similarity(got.flatten(), want.flatten(), dim=0) >= 0.99999
            assert (got - want).norm() < 1e-4 * want.norm()


@pytest.mark.parametrize("rows_per_loss_step", [1, 7, 64])
def test_in_how_many_parts_the_loss_is_computed_changes_nothing(
    rows_per_loss_step: int, model_folders: Mapping[str, Path]
):
    torch.manual_seed(0)
    state = state_with_b(model_folders["llama"], ())
    loss, whole = gradients_of(model_folders["llama"], state)
    other_loss, in_parts = gradients_of(model_folders["llama"], state, rows_per_loss_step=rows_per_loss_step)
    assert other_loss == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(in_parts.gradient, whole.gradient, rtol=1e-4, atol=1e-6)


def test_a_part_of_the_loss_takes_about_as_long_as_a_layer(model_folders: Mapping[str, Path], tmp_path: Path):
    small = check_trainable(served_model(model_folders["llama"]))
    assert rows_per_loss_step(small, 96) == 96
    LlamaForCausalLM(LlamaConfig(**{**SMALL, "vocab_size": 6000})).save_pretrained(tmp_path)
    with_large_head = check_trainable(served_model(tmp_path))
    layer_size = sum(weight.numel() for weight in with_large_head.blocks[0].parameters())
    rows = rows_per_loss_step(with_large_head, 96)
    assert (rows - 1) * 6000 * 64 < 96 * layer_size
    assert (rows + 1) * 6000 * 64 > 96 * layer_size


def test_bf16_is_near(model_folders: Mapping[str, Path]):
    torch.manual_seed(0)
    state = state_with_b(model_folders["qwen3"], ())
    loss, exact = gradients_of(model_folders["qwen3"], state)
    rounded_loss, rounded = gradients_of(model_folders["qwen3"], state, torch.bfloat16)
    assert rounded_loss == pytest.approx(loss, rel=0.01)
    assert torch.cosine_similarity(rounded.gradient, exact.gradient, dim=0) > 0.98


def test_a_position_that_the_model_does_not_serve_is_refused(model_folders: Mapping[str, Path]):
    model = check_trainable(served_model(model_folders["llama"]))
    model.build_positions(8, torch.device("cpu"))
    state = first_state(parameter_layout(model, (), rank=1), seed=0)
    trained = TrainedModel(model, LoraParameters(state, torch.float32, torch.device("cpu")), 1.0, rows_per_loss_step=8)
    with pytest.raises(InvalidRequest, match="more than 8 tokens"):
        trained.begin(BATCH, torch.empty(0, dtype=torch.uint8))
