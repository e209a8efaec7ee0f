from __future__ import annotations

import math

import pytest
import torch

from service.finetune.adamw import AdamW
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import LoraParameters, first_state
from service.finetune.training_state import ParameterLayout
from service.lora.adapter_folder import AdapterSite

LAYOUT = ParameterLayout({"one": AdapterSite(5, 7), "two": AdapterSite(3, 2)}, rank=2)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("max_norm", [0.5, math.inf])
def test_is_torchs_matrix_by_matrix(weight_decay: float, max_norm: float):
    state = first_state(LAYOUT, seed=0)
    parameters = LoraParameters(state, torch.float32, torch.device("cpu"))
    chosen = Hyperparameters(learning_rate=1, weight_decay=weight_decay, max_gradient_norm=max_norm)
    ours = AdamW(parameters, chosen, state)
    theirs = [each.clone().requires_grad_() for pair in state.matrices().values() for each in pair]
    optimizer = torch.optim.AdamW(theirs, weight_decay=weight_decay)
    for step in range(1, 8):
        parameters.gradient.normal_()
        gradients = [each for pair in LAYOUT.matrices(parameters.gradient).values() for each in pair]
        for matrix, gradient in zip(theirs, gradients, strict=True):
            matrix.grad = gradient.clone()
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        optimizer.param_groups[0]["lr"] = 1e-2 / step
        optimizer.step()
        norm = ours.step(step, 1e-2 / step)
        torch.testing.assert_close(norm, expected_norm)
        assert not parameters.gradient.any()
    trained = [each for pair in LAYOUT.matrices(parameters.values).values() for each in pair]
    for one, other in zip(trained, theirs, strict=True):
        torch.testing.assert_close(one, other.detach())
