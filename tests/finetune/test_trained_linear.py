from __future__ import annotations

import pytest
import torch

from service.finetune.lora_parameters import LoraParameters, first_state
from service.finetune.trained_linear import TrainedLinear
from service.finetune.training_state import ParameterLayout
from service.layers.linear import Linear, NamedLinear
from service.lora.adapter_folder import AdapterSite


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [("q", "k", "v"), ("q", "v"), ("other",)])
def test_is_autograds(trained: tuple[str, ...], bias: bool):
    sizes = {"q": 6, "k": 4, "v": 4, "other": 5}
    linear = Linear(8, 6, 4, 4, bias=bias)
    for parameter in linear.parameters():
        parameter.normal_()
    layout = ParameterLayout({name: AdapterSite(8, sizes[name]) for name in trained}, rank=3)
    state = first_state(layout, seed=0)
    state.parameters.normal_()
    parameters = LoraParameters(state, torch.float32, torch.device("cpu"))
    ours = TrainedLinear(NamedLinear(("q", "k", "v"), linear), parameters, scale=0.5)

    x, y_grad = torch.randn(5, 8, requires_grad=True), torch.randn(5, 14)
    flat = state.parameters.clone().requires_grad_()
    matrices = layout.matrices(flat)
    added = [
        0.5 * x @ matrices[name].a.t() @ matrices[name].b.t() if name in matrices else torch.zeros(5, sizes[name])
        for name in ("q", "k", "v")
    ]
    expected = torch.nn.functional.linear(x, linear.weight, linear.bias) + torch.cat(added, 1)
    expected.backward(y_grad)

    y, shrunk = torch.empty(5, 14), torch.empty(5, ours.shrunk_size)
    with torch.inference_mode():
        ours.forward(x.detach(), y, shrunk)
        shrunk_grad = ours.shrunk_gradient(y_grad)
        x_grad = ours.input_gradient(y_grad, shrunk_grad)
        for _ in range(2):
            ours.accumulate(x.detach(), shrunk, y_grad, shrunk_grad)
    torch.testing.assert_close(y, expected.detach())
    torch.testing.assert_close(x_grad, x.grad)
    if "other" not in trained:
        torch.testing.assert_close(parameters.gradient, 2 * flat.grad)
