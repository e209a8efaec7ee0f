"""A training as a file in memory, written by rank 0 and read by the other ranks of a divided model, so that all run the
same training from the same state on the same examples. Contains arrays and JSON only, no code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from service.finetune.dataset import Example
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.layer_graphs import GraphCapture
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import TrainingData, packed
from service.finetune.trainable_model import parameter_layout
from service.finetune.training_state import TrainingState
from service.models.causal_lm import CausalLM

_TENSORS = ("parameters", "first_moments", "second_moments")
_NUMBERS = ("step", "seed", "num_trained_tokens")


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """Everything a training is made of, except the model. rows_per_loss_step: see `TrainedModel`. moments_on_host: see
    `AdamW`. Both must be equal on all ranks, or their layer steps or results would differ."""

    training_id: int
    hyperparameters: Hyperparameters
    state: TrainingState
    examples: Sequence[Example]
    validation: Sequence[Example]
    steps_per_checkpoint: int
    rows_per_loss_step: int
    moments_on_host: bool

    def training(self, model: CausalLM, graphs: GraphCapture | None, *, tells_news: bool = True) -> LoraTraining:
        """model: this rank's part. Raises InvalidRequest as LoraTraining does."""
        hyperparameters = self.hyperparameters
        data = TrainingData(
            self.examples,
            batch_size=hyperparameters.batch_size,
            micro_batch_tokens=hyperparameters.micro_batch_tokens,
            num_epochs=hyperparameters.num_epochs,
            seed=hyperparameters.seed,
        )
        return LoraTraining(
            self.training_id,
            model,
            data,
            hyperparameters,
            self.state,
            validation=packed(self.validation, hyperparameters.micro_batch_tokens),
            steps_per_checkpoint=self.steps_per_checkpoint,
            rows_per_loss_step=self.rows_per_loss_step,
            graphs=graphs,
            moments_on_host=self.moments_on_host,
            tells_news=tells_news,
        )


def write_training(file: BinaryIO, task: TrainingTask) -> None:
    state = task.state
    facts = {
        "training_id": task.training_id,
        "hyperparameters": asdict(task.hyperparameters),
        "steps_per_checkpoint": task.steps_per_checkpoint,
        "rows_per_loss_step": task.rows_per_loss_step,
        "moments_on_host": task.moments_on_host,
        "num_validation": len(task.validation),
        **{name: getattr(state, name) for name in _NUMBERS},
    }
    examples = (*task.examples, *task.validation)
    arrays = {name: getattr(state, name).numpy() for name in _TENSORS}
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    arrays["lengths"] = np.array([len(each.token_ids) for each in examples], np.int64)
    arrays["token_ids"] = np.concatenate([each.token_ids for each in examples])
    arrays["is_trained"] = np.concatenate([each.is_trained for each in examples])
    np.savez(file, allow_pickle=False, **arrays)


def read_training(file: Path, model: CausalLM) -> TrainingTask:
    """model: the trained model, or this rank's part of it."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = dict(stored)
    facts = json.loads(arrays["facts"].tobytes())
    fields = facts["hyperparameters"]
    hyperparameters = Hyperparameters(**{**fields, "targets": tuple(fields["targets"])})
    layout = parameter_layout(model, hyperparameters.targets, hyperparameters.rank)
    parameters, first_moments, second_moments = (torch.from_numpy(arrays[name]) for name in _TENSORS)
    step, seed, num_trained_tokens = (int(facts[name]) for name in _NUMBERS)
    state = TrainingState(layout, parameters, first_moments, second_moments, step, seed, num_trained_tokens)
    ends = np.cumsum(arrays["lengths"])[:-1]
    parts = zip(np.split(arrays["token_ids"], ends), np.split(arrays["is_trained"], ends), strict=True)
    examples = [Example(token_ids, is_trained) for token_ids, is_trained in parts]
    num_examples = len(examples) - facts["num_validation"]
    return TrainingTask(
        facts["training_id"],
        hyperparameters,
        state,
        examples[:num_examples],
        examples[num_examples:],
        facts["steps_per_checkpoint"],
        facts["rows_per_loss_step"],
        facts["moments_on_host"],
    )
