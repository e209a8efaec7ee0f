"""A fine-tuning job on a loaded model, with random examples that fill its micro-batches: to measure it on a GPU."""

import itertools

import numpy as np

from loadtest.baselines.modelled_training import TOKENS_PER_ITERATION
from service.finetune.dataset import Example
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import first_state
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import TrainingData
from service.finetune.trainable_model import parameter_layout
from service.finetune.trained_model import graph_capture
from service.models.causal_lm import CausalLM

_IDS = itertools.count(1)
_MOST_EXAMPLES = 64
"""Number of examples, each as long as a micro-batch. More iterations mean more epochs."""


def new_training(model: CausalLM, num_iterations: int, vocab_size: int) -> LoraTraining:
    """LoRA of rank 16 on all linears; each micro-batch of 2,048 tokens is a step."""
    num_examples = min(num_iterations, _MOST_EXAMPLES)
    chosen = Hyperparameters(
        learning_rate=1e-4,
        batch_size=1,
        max_length=TOKENS_PER_ITERATION,
        micro_batch_tokens=TOKENS_PER_ITERATION,
    )
    chance = np.random.default_rng(0)
    examples = [
        Example(
            chance.integers(3, vocab_size, TOKENS_PER_ITERATION).astype(np.int32),
            np.arange(TOKENS_PER_ITERATION) > 0,
        )
        for _ in range(num_examples)
    ]
    data = TrainingData(
        examples,
        batch_size=chosen.batch_size,
        micro_batch_tokens=chosen.micro_batch_tokens,
        num_epochs=-(-num_iterations // num_examples),
        seed=chosen.seed,
    )
    state = first_state(parameter_layout(model, chosen.targets, chosen.rank), chosen.seed)
    graphs = graph_capture(model)
    return LoraTraining(next(_IDS), model, data, chosen, state, steps_per_checkpoint=num_iterations, graphs=graphs)
