"""Chooses the hyperparameters that a job leaves open, from the model and the data."""

from __future__ import annotations

import math
from typing import NamedTuple

from service.finetune.hyperparameters import Hyperparameters
from service.finetune.job import JobSpec
from service.finetune.served_base import ServedBase

_EPOCHS, _LEAST_SEEN, _MOST_SEEN, _MOST_EPOCHS = 3, 100, 25_000, 25
"""As OpenAI does: three epochs; more (up to 25) for few examples, to see 100; fewer for many, to see at most 25,000."""
_STEPS_AN_EPOCH, _MOST_A_STEP = 50, 16
"""Examples per step: small steps learn more from little data; beyond 16 there would only be fewer steps."""
_LEARNING_RATE, _AT_HIDDEN_SIZE, _EXPONENT = 5e-4, 2000, 0.781
"""For LoRA on Llama models, decreasing with the width (Schulman et al. 2025, LoRA Without Regret, and its code)."""
_MOST_LEARNING_RATE = 5e-3
USUAL_RANK = 16
_TOKENS_MULTIPLE = 64


class DataSize(NamedTuple):
    """num_tokens: in all examples. longest: tokens of the longest example."""

    num_examples: int
    num_tokens: int
    longest: int


def usual_learning_rate(hidden_size: int) -> float:
    """The learning rate that a job's multiplier is applied to."""
    return min(_LEARNING_RATE * math.pow(_AT_HIDDEN_SIZE / hidden_size, _EXPONENT), _MOST_LEARNING_RATE)


def max_length(spec: JobSpec, base: ServedBase) -> int:
    """The most tokens of an example; longer ones are cut."""
    return base.usual_length if spec.max_length is None else spec.max_length


def resolved(spec: JobSpec, base: ServedBase, data: DataSize) -> Hyperparameters:
    """spec: must have been checked. data: of examples that were cut at `max_length`."""
    batch_size = spec.batch_size or min(max(data.num_examples // _STEPS_AN_EPOCH, 1), _MOST_A_STEP)
    learning_rate = spec.learning_rate or usual_learning_rate(base.hidden_size) * (spec.learning_rate_multiplier or 1.0)
    rank = spec.rank or min(USUAL_RANK, base.max_rank)
    micro_batch_tokens = _micro_batch_tokens(batch_size, base, data)
    return Hyperparameters(
        learning_rate=learning_rate,
        rank=rank,
        alpha=spec.alpha or 2.0 * rank,
        targets=spec.targets or (),
        num_epochs=spec.num_epochs or _num_epochs(data.num_examples),
        batch_size=batch_size,
        max_length=min(max_length(spec, base), micro_batch_tokens),
        micro_batch_tokens=micro_batch_tokens,
        seed=spec.seed,
    )


def _num_epochs(num_examples: int) -> int:
    if _EPOCHS * num_examples < _LEAST_SEEN:
        return min(_MOST_EPOCHS, _LEAST_SEEN // num_examples)
    return _EPOCHS if _EPOCHS * num_examples <= _MOST_SEEN else max(1, _MOST_SEEN // num_examples)


def _micro_batch_tokens(batch_size: int, base: ServedBase, data: DataSize) -> int:
    """Usual number of tokens of a step, since a micro-batch's remainder is padding. At least the longest example."""
    of_a_step = batch_size * data.num_tokens // data.num_examples
    tokens = max(min(of_a_step, base.packed_length or base.usual_length), data.longest)
    return -(-tokens // _TOKENS_MULTIPLE) * _TOKENS_MULTIPLE
