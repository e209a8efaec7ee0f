from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import first_state
from service.finetune.shared_training import TrainingTask, read_training, write_training
from service.finetune.trainable_model import parameter_layout
from tests.finetune.served import completed, random_examples, served_model
from tests.models.checkpoints import llama

CHOSEN = Hyperparameters(2e-3, rank=4, targets=("q_proj", "up_proj"), num_epochs=1, batch_size=3, max_length=64)
EXAMPLES = random_examples(7, vocab_size=301, longest=40)


def task_of(folder: Path, num_validation: int) -> TrainingTask:
    state = first_state(parameter_layout(served_model(folder), CHOSEN.targets, CHOSEN.rank), seed=5)
    state = replace(state, first_moments=torch.rand_like(state.parameters), step=1, num_trained_tokens=77)
    split = len(EXAMPLES) - num_validation
    return TrainingTask(9, CHOSEN, state, EXAMPLES[:split], EXAMPLES[split:], 2, 40, moments_on_host=False)


def test_who_reads_it_trains_to_the_same_bits(tmp_path: Path):
    folder = llama(tmp_path / "model")
    for num_validation in (0, 2):
        task = task_of(folder, num_validation)
        file = tmp_path / "training"
        with file.open("wb") as opened:
            write_training(opened, task)
        model = served_model(folder)
        read = read_training(file, model)
        assert read.hyperparameters == CHOSEN and read.state.layout == task.state.layout
        for mine, its in zip((*task.examples, *task.validation), (*read.examples, *read.validation), strict=True):
            assert np.array_equal(mine.token_ids, its.token_ids) and np.array_equal(mine.is_trained, its.is_trained)
        whole, again = completed(task.training(model, None)), completed(read.training(model, None))
        assert whole[0] == again[0] and torch.equal(whole[1].parameters, again[1].parameters)


def test_who_tells_no_news_computes_the_same_and_keeps_nothing_to_tell(tmp_path: Path):
    folder = llama(tmp_path / "model")
    task, model = task_of(folder, 2), served_model(folder)
    told, silent = task.training(model, None), task.training(model, None, tells_news=False)
    while not told.is_over:
        assert told.advance(5) == silent.advance(5)
        told.take_news()
        assert silent.take_news() == ((), None)
    assert silent.is_over
    assert torch.equal(told.state().parameters, silent.state().parameters)


def test_nothing_in_it_is_code(tmp_path: Path):
    """Whoever reads it unpickles nothing."""
    file = io.BytesIO()
    write_training(file, task_of(llama(tmp_path / "model"), 0))
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        assert all(array.dtype.hasobject is False for array in dict(arrays).values())
