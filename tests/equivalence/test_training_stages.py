"""A model in pipeline stages is trained to the same bits as in one process: the same kernels compute every layer whole,
and a gradient's norm is summed over the same numbers in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from service.config import ParallelConfig
from service.core.training import StepReport
from service.distributed.process_groups import place_of
from service.errors import InvalidRequest, TrainingDiverged
from service.finetune.checkpoint import read_checkpoint, write_checkpoint
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import packed
from service.finetune.trained_model import ModelPass
from service.finetune.training_state import TrainingState
from service.layers.pipeline_stage import RankPlace
from service.layers.tensor_parallel import TensorParallel
from tests.equivalence.stage_work import stage_place
from tests.equivalence.test_training_ranks import check_trained_alike
from tests.finetune.served import completed, lora_training, random_examples, served_model
from tests.models.checkpoints import llama, qwen3
from tests.ranks import Ranks, Where

FAMILIES = {
    "llama": partial(llama, attention_bias=True, mlp_bias=True),
    "llama, tied": partial(llama, tie_word_embeddings=True),
    "qwen3": qwen3,
}
NUM_LAYERS = 4
TWO_STAGES, FOUR_STAGES, TWO_BY_TWO = ParallelConfig(1, 2), ParallelConfig(1, 4), ParallelConfig(2, 2)
CHOSEN = Hyperparameters(
    learning_rate=2e-3,
    rank=4,
    alpha=8,
    num_epochs=2,
    batch_size=4,
    max_length=64,
    micro_batch_tokens=96,
    weight_decay=0.01,
    max_gradient_norm=0.05,
)
EXAMPLES = random_examples(16, vocab_size=301, longest=60)
ROWS = 40
"""So large that the loss takes several layer steps."""


class Trained(NamedTuple):
    reports: list[StepReport]
    state: TrainingState


ALONE = RankPlace()


def training_of(
    folder: Path,
    place: RankPlace = ALONE,
    state: TrainingState | None = None,
    steps_per_checkpoint: int = 2,
    device: str = "cpu",
) -> LoraTraining:
    model = served_model(folder, device=device, parallel=place.parallel, stage=place.stage)
    validation = packed(EXAMPLES[10:], CHOSEN.micro_batch_tokens)
    how = {"steps_per_checkpoint": steps_per_checkpoint, "rows_per_loss_step": ROWS}
    tells_news = place.stage.index == place.stage.size - 1 and place.parallel.rank == 0
    return lora_training(model, EXAMPLES[:10], CHOSEN, state, validation=validation, tells_news=tells_news, **how)


def train(
    parallel: TensorParallel,
    folder: Path,
    config: ParallelConfig,
    file: Path,
    state: TrainingState | None = None,
    device: str = "cpu",
) -> Trained:
    """file: the state is written to it after some steps. device: with "cuda" there are two stages of one rank each."""
    place = stage_place(parallel, config, device)
    return trained(place, parallel.rank, folder, file, state, device)


def trained(
    place: RankPlace, rank: int, folder: Path, file: Path, state: TrainingState | None = None, device: str = "cpu"
) -> Trained:
    training = training_of(folder, place, state, device=device)
    # In pieces, and once with its memory taken away within a micro-batch, as plans have it.
    training.advance(7)
    training.use_memory(torch.full((training.num_arena_bytes,), 255, dtype=torch.uint8, device=device))
    training.advance(60)
    reports = [*training.take_news().reports]
    training.advance(0)
    if rank == 0:
        write_checkpoint(file, training.state(), "test")
    told: TrainingState | None = None
    while not training.is_over:
        training.advance(5)
        news = training.take_news()
        reports += news.reports
        told = news.state
    place.stage.least(0)  # what was handed over is kept until the others have it
    return Trained(reports, told if isinstance(told, TrainingState) else training._begin)


def check_same_bits(mine: Trained, its: Trained) -> None:
    assert mine.reports == its.reports
    for one, other in zip(mine.state.tensors, its.state.tensors, strict=True):
        assert torch.equal(one, other)
    assert mine.state.layout == its.state.layout


@pytest.mark.parametrize("family", FAMILIES)
def test_two_stages_train_to_the_bits_of_one_process_and_go_on_where_it_stopped(
    two_somewhere: Where, tmp_path: Path, family: str
):
    """And one process goes on where the stages stopped: a checkpoint does not depend on stages."""
    ranks, device = two_somewhere
    folder, file = FAMILIES[family](tmp_path / "model", num_hidden_layers=NUM_LAYERS), tmp_path / "checkpoint"
    alone = Trained(*completed(training_of(folder, device=device)))
    assert any(report.gradient_norm > CHOSEN.max_gradient_norm for report in alone.reports), "some are scaled"
    last, first = ranks.run(train, folder, TWO_STAGES, file, None, device)
    check_same_bits(last, alone)
    assert len(first.state.parameters) < len(last.state.parameters), "a stage has its own layers' alone"
    begun = read_checkpoint(file, alone.state.layout, "test")
    assert 0 < begun.step < alone.state.step
    rest = Trained(*completed(training_of(folder, state=begun, device=device)))
    check_same_bits(rest._replace(reports=[]), alone._replace(reports=[]))
    last, _ = ranks.run(train, folder, TWO_STAGES, tmp_path / "other", begun, device)
    check_same_bits(last, rest)


def test_examples_that_no_stage_can_take_are_refused_by_each(two_ranks: Ranks, tmp_path: Path):
    folder = llama(tmp_path / "model", num_hidden_layers=NUM_LAYERS)
    two_ranks.run(refuse, folder)


def refuse(parallel: TensorParallel, folder: Path) -> None:
    """Raised before anything is exchanged."""
    place = place_of(parallel.rank, TWO_STAGES, torch.device("cpu"))
    model = served_model(folder, stage=place.stage)
    unknown = random_examples(3, vocab_size=3001, longest=60)
    training = lora_training(model, unknown, CHOSEN, rows_per_loss_step=ROWS, tells_news=False)
    with pytest.raises(InvalidRequest, match="outside the model's vocabulary of 301"):
        training.advance(100)


FAULTS = [(rank, kind) for rank in (0, 1) for kind in ("forward", "backward")] + [(0, "loss")]


def test_a_stage_that_fails_leaves_nobody_waiting_and_nothing_for_the_next_training(two_ranks: Ranks, tmp_path: Path):
    """It fails in the last micro-batch of a step, at whose end norms are exchanged and the state is gathered."""
    folder, file = llama(tmp_path / "model", num_hidden_layers=NUM_LAYERS), tmp_path / "checkpoint"
    last, _ = two_ranks.run(fail_and_train, folder, file)
    check_same_bits(last, Trained(*completed(training_of(folder))))


def fail_and_train(parallel: TensorParallel, folder: Path, file: Path) -> Trained:
    place = place_of(parallel.rank, TWO_STAGES, torch.device("cpu"))
    for failing, kind in FAULTS:
        training = training_of(folder, place, steps_per_checkpoint=1)
        for _ in training._data.step(0).micro_batches[1:]:
            training.advance(training.layer_steps_left)
        with pytest.MonkeyPatch.context() as patch:
            if parallel.rank == failing:
                patch.setattr(ModelPass, kind, no_memory)
                with pytest.raises(MemoryError):
                    training.advance(training.layer_steps_left)
            else:
                training.advance(training.layer_steps_left)
                if parallel.rank == 0:
                    with pytest.raises(TrainingDiverged):
                        training.take_news()
    return trained(place, parallel.rank, folder, file)


def no_memory(*args: object, **more: object) -> None:
    raise MemoryError("none left")


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.stop()


@pytest.mark.load
def test_four_stages_train_to_the_bits_of_one_process(four_ranks: Ranks, tmp_path: Path):
    folder = llama(tmp_path / "model", num_hidden_layers=NUM_LAYERS)
    last, *_ = four_ranks.run(train, folder, FOUR_STAGES, tmp_path / "checkpoint")
    check_same_bits(last, Trained(*completed(training_of(folder))))


@pytest.mark.load
def test_stages_of_two_ranks_train_as_one_process(four_ranks: Ranks, tmp_path: Path):
    """Their all-reduces sum in another order than one process; both ranks of a stage have the same bits."""
    folder = llama(tmp_path / "model", num_hidden_layers=NUM_LAYERS)
    last, *_ = four_ranks.run(train, folder, TWO_BY_TWO, tmp_path / "checkpoint")
    check_trained_alike(Trained(*completed(training_of(folder))), last, last)
