"""What a training is told: the adapter's shape, the optimizer's numbers, the sizes of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_EPOCHS = 50
MAX_BATCH_SIZE = 256


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Checked when it is made: ValueError names the field.

    rank, alpha: of A and B; what they add is multiplied by alpha / rank. targets: last parts of the names of the linear
    layers that get an adapter (`q_proj`), as PEFT's `target_modules`; empty: all linear layers of a block.
    learning_rate: the highest; `learning_rate_at` says what a step has. weight_decay: AdamW's, not scaled by gradients.
    max_gradient_norm: a step's gradient with a larger norm, over all of A and B, is scaled down to it.
    batch_size: examples in an optimizer step. max_length: tokens of an example; longer ones are cut there.
    micro_batch_tokens: what is computed at once, padded to this length; an example lies in one micro-batch.
    warmup_ratio: share of the steps over which the learning rate rises. seed: of A's first values and of the order.
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
        """Optimizer steps over so many examples. The last step of an epoch has what is left."""
        return self.num_epochs * -(-num_examples // self.batch_size)

    def learning_rate_at(self, step: int, num_steps: int) -> float:
        """Of step 1, 2, ... num_steps: rises linearly to `learning_rate`, then falls linearly; never 0."""
        warmup = math.floor(self.warmup_ratio * num_steps)
        rise, fall = step / (warmup + 1), (num_steps - step + 1) / (num_steps - warmup)
        return self.learning_rate * min(rise, fall, 1.0)


def _check(name: str, value: object, is_right: bool) -> None:
    if not is_right:
        raise ValueError(f"{name}: {value} is out of range")
