from __future__ import annotations

import math

import pytest
import torch

from service.finetune import adamw as module
from service.finetune.adamw import AdamW
from service.finetune.host_copies import host_copies
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
        norm = torch.linalg.vector_norm(parameters.gradient_norms())
        ours.step(step, 1e-2 / step, norm)
        torch.testing.assert_close(norm, expected_norm)
        assert not parameters.gradient.any()
    trained = [each for pair in LAYOUT.matrices(parameters.values).values() for each in pair]
    for one, other in zip(trained, theirs, strict=True):
        torch.testing.assert_close(one, other.detach())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_moments_on_the_host_a_part_at_a_time_give_the_same_bits(device: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_PART", 16)
    chosen, state = Hyperparameters(learning_rate=1, weight_decay=0.1), first_state(LAYOUT, seed=0)
    made = []
    for moments_on_host in (False, True):
        torch.manual_seed(0)
        parameters = LoraParameters(state, torch.float32, torch.device(device))
        optimizer = AdamW(parameters, chosen, state, moments_on_host=moments_on_host)
        for step in range(1, 5):
            parameters.gradient.copy_(torch.randn(len(parameters.gradient)))
            optimizer.step(step, 1e-2, torch.linalg.vector_norm(parameters.gradient_norms()))
        if moments_on_host:
            assert optimizer.first_moments.device.type == optimizer.second_moments.device.type == "cpu"
        tensors = (parameters.values, optimizer.first_moments, optimizer.second_moments)
        made.append(host_copies(tensors, torch.device(device)))
    assert len(made[0][0]) > 2 * 16
    for on_device, on_host in zip(*made, strict=True):
        assert torch.equal(on_device, on_host)
