"""A module counts as what it computes, whatever its name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP, LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from service.models.transformers_backend.fusions import NormedRows, gated_mlp_of, use_our_norms
from service.models.transformers_backend.linears import use_our_linears


class Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module


@pytest.mark.parametrize(
    ("norm", "is_ours"),
    [(LlamaRMSNorm, True), (Olmo2RMSNorm, True), (Gemma2RMSNorm, False), (nn.LayerNorm, False), (nn.Linear, False)],
)
def test_rms_norms_by_the_plain_weight_alone(norm, is_ours):
    with torch.device("meta"):
        holder = Holder(norm(6, 1e-3) if norm is not nn.Linear else norm(6, 6))
    use_our_norms(holder)
    assert isinstance(holder.inner, NormedRows) == is_ours
    assert set(dict(holder.named_parameters())) >= {"inner.weight"}, "by its name in a checkpoint"


def test_a_norm_of_ours_is_the_same_function():
    theirs = LlamaRMSNorm(6, 1e-3)
    theirs.weight.data.uniform_(0.5, 1.5)
    holder = Holder(theirs)
    use_our_norms(holder)
    assert isinstance(holder.inner, NormedRows)
    for shape in ((1, 5, 6), (1, 5, 2, 6)):
        x = 0.05 * torch.randn(shape)
        torch.testing.assert_close(holder.inner(x), theirs(x))


def mlp(activation: str) -> LlamaMLP:
    return LlamaMLP(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=12, hidden_act=activation))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_a_gated_mlp_of_ours_is_the_same_function(activation: str):
    theirs, holder = mlp(activation), Holder(mlp(activation))
    named = use_our_linears(holder, [["inner.gate_proj", "inner.up_proj"], ["inner.down_proj"]])
    for each in named:
        tensors = each.linear.checkpoint_tensors(*each.names)
        for name, part in tensors.items():
            part.copy_(theirs.get_parameter(name.removeprefix("inner.")).detach())
    x = torch.randn(1, 5, 8)
    torch.testing.assert_close(holder.inner(x), theirs(x))
    assert [each.names for each in named] == [("inner.gate_proj", "inner.up_proj"), ("inner.down_proj",)]


class OtherMlp(LlamaMLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


def test_another_formula_under_the_same_names_stays_theirs():
    assert gated_mlp_of(OtherMlp(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=12))) is None
    assert gated_mlp_of(mlp("relu")) is None
    assert gated_mlp_of(nn.Linear(2, 2)) is None
