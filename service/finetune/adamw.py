"""AdamW (Loshchilov and Hutter 2019) over one flat tensor, as torch computes it, with the gradient's norm clipped."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import LoraParameters
from service.finetune.training_state import TrainingState

_BETAS = (0.9, 0.999)
_EPS = 1e-8
"""torch's and transformers' defaults."""


class AdamW:
    """first_moments, second_moments [num_parameters] fp32."""

    def __init__(self, parameters: LoraParameters, hyperparameters: Hyperparameters, state: TrainingState) -> None:
        self._parameters = parameters
        self._weight_decay = hyperparameters.weight_decay
        self._max_norm = hyperparameters.max_gradient_norm
        device = parameters.values.device
        self.first_moments = state.first_moments.to(device, copy=True)
        self.second_moments = state.second_moments.to(device, copy=True)

    def step(self, number: int, learning_rate: float) -> Tensor:
        """Take the step of this number, the first is 1, by the gradient, which is zero afterwards. Returns the
        gradient's norm before it was clipped, a number on the device, for which nobody waited."""
        gradient = self._parameters.gradient
        norm: Tensor = torch.linalg.vector_norm(gradient)
        if self._max_norm < math.inf:
            gradient.mul_((self._max_norm / (norm + 1e-6)).clamp_(max=1.0))
        adamw(
            [self._parameters.values],
            [gradient],
            [self.first_moments],
            [self.second_moments],
            [],
            [torch.full((), number - 1.0, device=gradient.device)],  # which it counts up
            fused=True,
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=_EPS,
            maximize=False,
        )
        gradient.zero_()
        self._parameters.renew_computed()
        return norm
