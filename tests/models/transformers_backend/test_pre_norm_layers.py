"""A layer that sums otherwise under the same names stays transformers'; its attention is fused all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

from tests.models.transformers_backend.other_formulas import fusion_with


class ScaledLayer(LlamaDecoderLayer):
    """Adds a part of the MLP's output."""

    def forward(self, hidden_states: Tensor, **more: object) -> Tensor:
        attended = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **more)[0]
        return attended + 0.5 * self.mlp(self.post_attention_layernorm(attended))


class LimitedLayer(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, **more: object) -> Tensor:
        return super().forward(hidden_states, **more).clamp(-9, 9)


class LimitedBranch(LlamaDecoderLayer):
    def forward(self, hidden_states: Tensor, **more: object) -> Tensor:
        attended = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **more)[0]
        return attended + self.mlp(self.post_attention_layernorm(attended)).clamp(-5, 5)


class ParallelLayer(LlamaDecoderLayer):
    """Attention and MLP read the same."""

    def forward(self, hidden_states: Tensor, **more: object) -> Tensor:
        attended = self.self_attn(self.input_layernorm(hidden_states), **more)[0]
        return hidden_states + attended + self.mlp(self.post_attention_layernorm(hidden_states))


@pytest.mark.parametrize("other", [ScaledLayer, LimitedLayer, LimitedBranch, ParallelLayer])
def test_another_sum_under_the_same_name_stays_theirs(other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    with caplog.at_level("INFO", logger="headrace"):
        fusion = fusion_with("LlamaDecoderLayer", other, tmp_path, monkeypatch)
    assert (fusion.has_attention, fusion.narrows) == (True, False)
    assert "model-impl: layers of transformers' LlamaModel are not fused" in caplog.text


class DoublingModel(LlamaModel):
    """Changes the hidden states between two layers."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.layers[1].register_forward_pre_hook(lambda module, arguments: (2 * arguments[0], *arguments[1:]))


def test_layers_between_which_the_model_computes_stay_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fusion = fusion_with("LlamaModel", DoublingModel, tmp_path, monkeypatch)
    assert (fusion.has_attention, fusion.narrows) == (True, False)
