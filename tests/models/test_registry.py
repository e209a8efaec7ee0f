from __future__ import annotations

import pytest

from service.models.gpt2 import Gpt2
from service.models.gpt_oss import GptOss
from service.models.llama import Llama
from service.models.mixtral import Mixtral
from service.models.model_config import parse_model_config
from service.models.opt import Opt
from service.models.qwen3 import Qwen3
from service.models.registry import ARCHITECTURES, build_model
from tests.models.test_model_config import LEAST_FIELDS

CLASSES = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen2ForCausalLM": Llama,
    "Qwen3ForCausalLM": Qwen3,
    "MixtralForCausalLM": Mixtral,
    "Qwen2MoeForCausalLM": Llama,
    "Qwen3MoeForCausalLM": Qwen3,
    "GptOssForCausalLM": GptOss,
    "OPTForCausalLM": Opt,
    "GPT2LMHeadModel": Gpt2,
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_builds_without_memory(name):
    model = build_model(parse_model_config(LEAST_FIELDS[name]))
    assert type(model) is CLASSES[name]
    assert all(parameter.is_meta for parameter in model.parameters())
