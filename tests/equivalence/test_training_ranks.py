"""A model in tensor parallel is trained as on one rank: the same losses, close adapters, and the same bits on every
rank."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from service.core.training import StepReport
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.packing import packed
from service.finetune.training_state import TrainingState
from service.layers.tensor_parallel import ALONE, TensorParallel
from tests.equivalence.rank_work import over_gpus
from tests.finetune.served import completed, lora_training, random_examples, served_model
from tests.models.checkpoints import llama, mistral, qwen2, qwen3
from tests.ranks import Ranks

FAMILIES = {
    "llama": partial(llama, attention_bias=True, mlp_bias=True),
    "llama, tied, one key-value head": partial(llama, tie_word_embeddings=True, num_key_value_heads=1),
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": partial(qwen3, tie_word_embeddings=True),
}
CHOSEN = Hyperparameters(
    learning_rate=2e-3,
    rank=4,
    alpha=8,
    num_epochs=2,
    batch_size=4,
    max_length=64,
    micro_batch_tokens=96,
    weight_decay=0.01,
)
EXAMPLES = random_examples(10, vocab_size=301, longest=60)
SOME_LINEARS = ("q_proj", "o_proj", "up_proj")


class Trained(NamedTuple):
    reports: list[StepReport]
    state: TrainingState


def train(parallel: TensorParallel, folder: Path, targets: tuple[str, ...], device: str = "cpu") -> Trained:
    parallel = over_gpus(parallel) if device == "cuda" else parallel
    chosen = Hyperparameters(**{name: getattr(CHOSEN, name) for name in CHOSEN.__slots__} | {"targets": targets})
    model = served_model(folder, device=device, parallel=parallel)
    validation = packed(EXAMPLES[6:], chosen.micro_batch_tokens)
    training = lora_training(model, EXAMPLES[:6], chosen, validation=validation)
    # In pieces, and once with its memory taken away within a micro-batch, as plans have it.
    training.advance(7)
    training.use_memory(torch.full((training.num_arena_bytes,), 255, dtype=torch.uint8, device=device))
    return Trained(*completed(training))


@pytest.mark.parametrize(("family", "targets"), [*((family, ()) for family in FAMILIES), ("llama", SOME_LINEARS)])
def test_two_ranks_train_as_one(two_ranks: Ranks, tmp_path: Path, family: str, targets: tuple[str, ...]):
    folder = FAMILIES[family](tmp_path)
    check_trained_alike(train(ALONE, folder, targets), *two_ranks.run(train, folder, targets))


def check_trained_alike(alone: Trained, first: Trained, second: Trained) -> None:
    assert first.reports == second.reports
    assert torch.equal(first.state.parameters, second.state.parameters)
    for mine, its in zip(alone.reports, first.reports, strict=True):
        assert [each or 0.0 for each in its] == pytest.approx([each or 0.0 for each in mine], rel=2e-4)
    differing = (first.state.parameters - alone.state.parameters).abs() > 2e-5
    assert differing.float().mean() < 0.01, (
        "Adam divides a gradient by its size: one that is next to nothing may differ"
    )
    torch.testing.assert_close(first.state.first_moments, alone.state.first_moments, rtol=1e-2, atol=2e-4)


@pytest.mark.gpu
def test_two_gpus_train_as_one(two_gpu_ranks: Ranks, tmp_path: Path):
    folder = FAMILIES["llama"](tmp_path)
    how = folder, (), "cuda"
    check_trained_alike(train(ALONE, *how), *two_gpu_ranks.run(train, *how))
