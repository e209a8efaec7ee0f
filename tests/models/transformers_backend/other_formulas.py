"""Models of transformers in which one formula is another one under the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from service.models.transformers_backend.layer_fusion import LayerFusion
from service.models.transformers_backend.model import TransformersModel
from tests.models.checkpoints import llama
from tests.models.forward import logits_of, ready_model


def fusion_with(name: str, other: Any, folder: Path, patch: pytest.MonkeyPatch) -> LayerFusion:
    """What is fused of a Llama with `other` in place of transformers' `name`. Checks that it gives transformers' own
    logits, and that these are not Llama's."""
    tokens = torch.randint(0, 301, (70,)).tolist()
    llama(folder)
    plain = modeling_llama.LlamaForCausalLM.from_pretrained(folder)(torch.tensor([tokens])).logits[0]
    patch.setattr(modeling_llama, name, other)
    expected = modeling_llama.LlamaForCausalLM.from_pretrained(folder)(torch.tensor([tokens])).logits[0]
    assert not torch.allclose(plain, expected, atol=1e-2), "the formula makes a difference"
    config, model = ready_model(folder, implementation="transformers")
    torch.testing.assert_close(logits_of(model, config, tokens), expected, atol=2e-4, rtol=2e-4)
    assert isinstance(model, TransformersModel)
    return model._fusion
