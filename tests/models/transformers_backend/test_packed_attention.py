"""Attention that computes otherwise under the same names stays transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from tests.models.transformers_backend.other_formulas import fusion_with


def interleaved(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


class ScaledQueries(LlamaAttention):
    """Queries of far positions are longer."""

    def forward(self, hidden_states: Tensor, position_ids: Tensor, **more: object):
        far = 1 + (position_ids > 30).to(hidden_states.dtype)[..., None]
        return super().forward(hidden_states * far, position_ids=position_ids, **more)


class LimitedOutput(LlamaAttention):
    def forward(self, hidden_states: Tensor, **more: object):
        made, weights = super().forward(hidden_states, **more)
        return made.clamp(-5, 5), weights


class OtherRotaryEmbedding(LlamaRotaryEmbedding):
    """Turns the second half of a head otherwise. Its buffers are filled by its name."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = super().forward(x, position_ids)
        return cos, torch.cat((sin.chunk(2, -1)[0], 0.5 * sin.chunk(2, -1)[1]), dim=-1)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("rotate_half", interleaved),
        ("LlamaAttention", ScaledQueries),
        ("LlamaAttention", LimitedOutput),
        ("LlamaRotaryEmbedding", OtherRotaryEmbedding),
    ],
)
def test_another_formula_under_the_same_name_stays_theirs(
    name: str, other, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
):
    with caplog.at_level("INFO", logger="headrace"):
        fusion = fusion_with(name, other, tmp_path, monkeypatch)
    assert (fusion.has_attention, fusion.narrows) == (False, False)
    assert "model-impl: attention of transformers' LlamaModel is not fused" in caplog.text
