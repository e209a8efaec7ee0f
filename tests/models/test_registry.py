from __future__ import annotations

import pytest

from service.errors import ModelLoadError
from service.models.llama import Llama
from service.models.model_config import parse_model_config
from service.models.qwen3 import Qwen3
from service.models.registry import build_model
from tests.models.test_model_config import FIELDS


@pytest.mark.parametrize(("name", "architecture"), [("LlamaForCausalLM", Llama), ("Qwen3ForCausalLM", Qwen3)])
def test_builds_without_memory(name, architecture):
    model = build_model(parse_model_config({**FIELDS, "architectures": [name]}))
    assert type(model) is architecture
    assert all(parameter.is_meta for parameter in model.parameters())


def test_an_unknown_architecture_is_named_with_the_known_ones():
    with pytest.raises(ModelLoadError, match="'GptBigForCausalLM' is not served; known: LlamaForCausalLM, Qwen3For"):
        build_model(parse_model_config({**FIELDS, "architectures": ["GptBigForCausalLM"]}))
