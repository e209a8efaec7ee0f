"""Hyperparameters of a training: shape of the adapter, optimizer settings, sizes of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_EPOCHS = 50
MAX_BATCH_SIZE = 256


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Checked at construction: ValueError naming the field.

    rank, alpha: of the adapter; the product of B and A is multiplied by alpha / rank. targets: last parts of the names
    of the linears that get an adapter (`q_proj`), as PEFT's `target_modules`; empty: all linears of a block.
    learning_rate: the peak; see `learning_rate_at`. weight_decay: AdamW's (decoupled).
    max_gradient_norm: a step's gradient with a larger norm, over all A and B, is scaled down to this norm.
    batch_size: examples per optimizer step. max_length: examples are cut at so many tokens.
    micro_batch_tokens: tokens computed at once, including padding; an example is never split over micro-batches.
    warmup_ratio: share of the steps in which the learning rate rises. seed: for initial A and order of examples.
    """

    learning_rate: float
    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ()
    num_epochs: int = 3
    batch_size: int = 8
    max_length: int = 512
    micro_batch_tokens: int = 512
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    warmup_ratio: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _check("rank", self.rank, self.rank >= 1)
        _check("alpha", self.alpha, 0 < self.alpha < math.inf)
        _check("learning_rate", self.learning_rate, 0 < self.learning_rate < math.inf)
        _check("num_epochs", self.num_epochs, 1 <= self.num_epochs <= MAX_EPOCHS)
        _check("batch_size", self.batch_size, 1 <= self.batch_size <= MAX_BATCH_SIZE)
        _check("max_length", self.max_length, 2 <= self.max_length <= self.micro_batch_tokens)
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf)
        _check("max_gradient_norm", self.max_gradient_norm, self.max_gradient_norm > 0)
        _check("warmup_ratio", self.warmup_ratio, 0 <= self.warmup_ratio < 1)
        _check("seed", self.seed, 0 <= self.seed < 2**63)

    def num_steps(self, num_examples: int) -> int:
        """Optimizer steps for so many examples. The last step of an epoch may have fewer than batch_size."""
        return self.num_epochs * -(-num_examples // self.batch_size)

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Learning rate of step 1, 2, ..., num_steps: a linear rise to `learning_rate`, then a linear fall; never 0."""
        warmup = math.floor(self.warmup_ratio * num_steps)
        rise, fall = step / (warmup + 1), (num_steps - step + 1) / (num_steps - warmup)
        return self.learning_rate * min(rise, fall, 1.0)


def _check(name: str, value: object, is_right: bool) -> None:
    if not is_right:
        raise ValueError(f"{name}: {value} is out of range")
