"""What a step of nothing tells."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import MistralConfig

from service.errors import ModelLoadError
from service.models.transformers_backend.attention import CurrentStep
from service.models.transformers_backend.probe import probe
from tests.models.checkpoints import SMALL
from tests.models.transformers_backend.models import llama_config, meta_model


def test_calls_of_attention_and_the_linears_that_read_the_same():
    base = meta_model(MistralConfig(**SMALL, sliding_window=9)).base_model
    made = probe(base, CurrentStep(base))
    assert [(call.window, call.softcap, call.scale) for call in made.calls] == [(9, None, 0.25)] * 2
    assert [call.key.shape for call in made.calls] == [(1, 2, 3, 16)] * 2
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    assert made.linears[:4] == [
        [attention + "q_proj", attention + "k_proj", attention + "v_proj"],
        [attention + "o_proj"],
        [mlp + "gate_proj", mlp + "up_proj"],
        [mlp + "down_proj"],
    ]


def test_how_modules_are_called_and_what_they_return():
    base = meta_model(llama_config()).base_model
    base.layers[0].mlp = base.layers[1].mlp
    modules = probe(base, CurrentStep(base)).modules
    first, second, rotary = modules["layers.0"], modules["layers.1"], modules["rotary_emb"]
    assert second.arguments[0] is first.returned
    assert first.named["position_embeddings"] is rotary.returned
    assert (first.num_returned, rotary.num_returned, modules["layers.0.self_attn"].num_returned) == (0, 2, 2)
    assert (first.num_calls, modules["layers.0.mlp"].num_calls) == (1, 2)


def test_a_linear_that_is_called_twice_or_never_stays_as_it_is():
    base = meta_model(llama_config()).base_model
    base.layers[0].mlp.down_proj = base.layers[1].mlp.down_proj
    base.spare = nn.Linear(4, 4, device="meta")
    names = {name for group in probe(base, CurrentStep(base)).linears for name in group}
    assert not names & {"layers.0.mlp.down_proj", "layers.1.mlp.down_proj", "spare"}


def test_code_that_looks_at_values_is_refused():
    base = meta_model(llama_config()).base_model
    base.layers[0].register_forward_pre_hook(lambda module, arguments: arguments if arguments[0].sum() > 0 else None)
    with pytest.raises(ModelLoadError, match="model-impl: LlamaModel of transformers cannot compute a batch"):
        probe(base, CurrentStep(base))
    assert not any(module._forward_pre_hooks for module in base.modules() if isinstance(module, nn.Linear))
