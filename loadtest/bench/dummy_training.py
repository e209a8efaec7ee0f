"""A fine-tuning of a model with dummy weights over given tokens, computed as in the service. Every token has a loss."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from service.finetune.dataset import Example
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import first_state
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import TrainingData
from service.finetune.trainable_model import parameter_layout
from service.finetune.trained_model import graph_capture
from service.models.causal_lm import CausalLM
from service.models.dummy_weights import fill_with_dummy_weights
from service.models.model_config import load_model_config
from service.models.registry import build_model


def dummy_model(folder: Path, dtype: torch.dtype, device: torch.device, num_positions: int) -> CausalLM:
    """A model of the shape in the folder's config.json, built as for serving."""
    model = build_model(load_model_config(folder))
    model.materialize(dtype, device)
    fill_with_dummy_weights(model, seed=0)
    model.build_positions(num_positions, device)
    return model


def new_training(
    model: CausalLM,
    token_ids: np.ndarray[Any, np.dtype[np.int32]],
    *,
    batch_size: int,
    rank: int,
    targets: Sequence[str],
    enforce_eager: bool = False,
) -> LoraTraining:
    """token_ids [steps * batch_size, tokens of a micro-batch]. It reports nothing before its last step. enforce_eager:
    no CUDA graphs."""
    num_sequences, num_tokens = token_ids.shape
    is_trained = np.arange(num_tokens) > 0
    chosen = Hyperparameters(
        learning_rate=1e-4,
        rank=rank,
        alpha=2 * rank,
        targets=tuple(targets),
        num_epochs=1,
        batch_size=batch_size,
        max_length=num_tokens,
        micro_batch_tokens=num_tokens,
        max_gradient_norm=math.inf,
    )
    data = TrainingData(
        [Example(ids, is_trained) for ids in token_ids],
        batch_size=batch_size,
        micro_batch_tokens=num_tokens,
        num_epochs=1,
        seed=0,
    )
    state = first_state(parameter_layout(model, chosen.targets, rank), seed=0)
    graphs = graph_capture(model, enforce_eager=enforce_eager)
    return LoraTraining(1, model, data, chosen, state, steps_per_checkpoint=num_sequences, graphs=graphs)
