"""Tiny models as they are served, and trainings of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from service.core.training import StepReport
from service.finetune.dataset import Example
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import first_state
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import TrainingData
from service.finetune.trainable_model import parameter_layout
from service.finetune.training_state import TrainingState
from service.layers.pipeline_stage import WHOLE, PipelineStage
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.models.causal_lm import CausalLM
from service.models.model_config import load_model_config
from service.models.registry import build_model
from service.models.weight_loader import load_weights


def served_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    parallel: TensorParallel = ALONE,
    stage: PipelineStage = WHOLE,
) -> CausalLM:
    config = load_model_config(folder)
    model = build_model(config, parallel, stage)
    model.materialize(dtype, torch.device(device))
    load_weights(model, folder)
    model.build_positions(config.max_position_embeddings, torch.device(device))
    model.settle()
    return model


def random_examples(count: int, vocab_size: int, longest: int, seed: int = 0) -> list[Example]:
    """Of 2 .. `longest` tokens, of which some that are not the first are trained."""
    chance = np.random.default_rng(seed)
    examples = []
    for length in chance.integers(2, longest + 1, count):
        is_trained = chance.random(length) < 0.6
        is_trained[0], is_trained[-1] = False, True
        examples.append(Example(chance.integers(3, vocab_size, length).astype(np.int32), is_trained))
    return examples


def training_data(examples: Sequence[Example], hyperparameters: Hyperparameters) -> TrainingData:
    return TrainingData(
        examples,
        batch_size=hyperparameters.batch_size,
        micro_batch_tokens=hyperparameters.micro_batch_tokens,
        num_epochs=hyperparameters.num_epochs,
        seed=hyperparameters.seed,
    )


def lora_training(
    model: CausalLM,
    examples: Sequence[Example],
    hyperparameters: Hyperparameters,
    state: TrainingState | None = None,
    **options: Any,
) -> LoraTraining:
    """state: None: a new one."""
    layout = parameter_layout(model, hyperparameters.targets, hyperparameters.rank)
    state = state or first_state(layout, hyperparameters.seed)
    data = training_data(examples, hyperparameters)
    return LoraTraining(1, model, data, hyperparameters, state, **{"steps_per_checkpoint": 10**9, **options})


def completed(training: LoraTraining) -> tuple[list[StepReport], TrainingState]:
    """Runs it to its end."""
    reports: list[StepReport] = []
    while not training.is_over:
        training.advance(10**9)
        reports += training.take_news().reports
    return reports, training.state()
