from __future__ import annotations

import pytest

from kernels.mxfp4 import GROUP
from service.errors import ConfigError
from service.layers.pipeline_stage import PlannedStage
from service.layers.projection import Projection
from service.models.gemma import Gemma
from service.models.gpt2 import Gpt2
from service.models.gpt_oss import GptOss
from service.models.llama import Llama
from service.models.mixtral import Mixtral
from service.models.model_config import parse_model_config
from service.models.olmoe import Olmoe
from service.models.opt import Opt
from service.models.qwen3 import Qwen3
from service.models.rank_division import MXFP4_GROUP
from service.models.registry import ARCHITECTURES, build_model
from tests.layers.test_shard import ranks
from tests.models.test_model_config import FIELDS, LEAST_FIELDS

CLASSES = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen2ForCausalLM": Llama,
    "Qwen3ForCausalLM": Qwen3,
    "MixtralForCausalLM": Mixtral,
    "Qwen2MoeForCausalLM": Llama,
    "Qwen3MoeForCausalLM": Qwen3,
    "GptOssForCausalLM": GptOss,
    "OlmoeForCausalLM": Olmoe,
    "Phi3ForCausalLM": Llama,
    "GemmaForCausalLM": Gemma,
    "Gemma2ForCausalLM": Gemma,
    "Gemma3ForCausalLM": Gemma,
    "OPTForCausalLM": Opt,
    "GPT2LMHeadModel": Gpt2,
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_builds_without_memory(name):
    model = build_model(parse_model_config(LEAST_FIELDS[name]))
    assert type(model) is CLASSES[name]
    assert all(parameter.is_meta for parameter in model.parameters())


def test_experts_of_four_bits_divide_in_whole_groups():
    assert MXFP4_GROUP == GROUP
    fields = LEAST_FIELDS["GptOssForCausalLM"] | {"intermediate_size": 96}
    build_model(parse_model_config(fields), ranks(2)[0])
    packed = parse_model_config(fields | {"quantization_config": {"quant_method": "mxfp4"}})
    with pytest.raises(ConfigError, match=r"2 does not divide the model's groups of 32 in the experts' inner size 3$"):
        build_model(packed, ranks(2)[0])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ranks_hold_equal_parts_and_together_the_whole(name):
    """Rank by rank the same shapes, so that what is chosen for one's weights is for all."""
    config = parse_model_config({**LEAST_FIELDS[name], "tie_word_embeddings": False})
    whole = build_model(config)
    models = [build_model(config, rank) for rank in ranks(2)]
    names = [[each.shape_name for each in model.projections] for model in models]
    assert names[0] == names[1]
    modules = dict(whole.named_modules())
    for path, module in models[0].named_modules():
        if isinstance(module, Projection):
            is_router = path.endswith(("router", "shared_gate"))
            assert (module.shape_name == modules[path].shape_name) is is_router, "no other matrix is whole"
    assert all(parameter.is_meta for model in models for parameter in model.parameters())
    tensors = [(model.checkpoint_tensors(), model.checkpoint_shards()) for model in models]
    for stored, tensor in whole.checkpoint_tensors().items():
        for table, shards in tensors:
            part = table[stored]
            assert (shards[stored].whole_shape(part.shape) if stored in shards else part.shape) == tensor.shape
        if stored in tensors[0][1]:
            held = [i for _, shards in tensors for each in shards[stored].ranges for i in each]
            assert sorted(held) == list(range(tensors[0][1][stored].size))


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        (
            {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4},
            4,
            "heads 6; key-value heads 3",
        ),
        ({"num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 4}, 2, "key-value heads 3"),
        ({"intermediate_size": 99}, 2, "MLP inner size 99"),
        ({"vocab_size": 20}, 4, r"vocabulary 20 \(too small: each rank takes a multiple of 16 ids"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_numbers(changes, size, message):
    config = parse_model_config({**FIELDS, **changes})
    build_model(config)
    for rank in ranks(size):
        with pytest.raises(ConfigError, match=f"tensor-parallel-size: {size} does not divide the model's .*{message}"):
            build_model(config, rank)


@pytest.mark.each_once
@pytest.mark.parametrize("name", LEAST_FIELDS)
@pytest.mark.parametrize("is_tied", [False, True])
def test_stages_hold_each_tensor_once_and_together_the_whole(name: str, is_tied: bool):
    """But for the embedding, which a tied head needs, too. Of what another stage has the names are known."""
    layers = {"num_hidden_layers": 4, "n_layer": 4}
    config = parse_model_config({**LEAST_FIELDS[name], **layers, "tie_word_embeddings": is_tied})
    whole = build_model(config).checkpoint_tensors()
    models = [build_model(config, stage=PlannedStage(2, index)) for index in range(2)]
    first, last = (model.checkpoint_tensors() for model in models)
    shared = first.keys() & last.keys()
    assert shared == ({models[0].embedding_name} if config.tie_word_embeddings else set())
    assert first.keys() | last.keys() == whole.keys()
    assert all(part.shape == whole[stored].shape for table in (first, last) for stored, part in table.items())
    for model, table in zip(models, (first, last), strict=True):
        assert all(model.ignores(stored) for stored in whole.keys() - table.keys())
        assert not model.ignores(model.layer_prefix + "4.some.weight")
        assert not model.ignores(model.layer_prefix + f"{model.first_layer}.some.weight")
        assert not model.ignores("some.weight")
        names = [each for of_block in model.block_linears() for linear in of_block for each in linear.names]
        assert all(each + ".weight" in table for each in names)


def test_layers_that_do_not_make_equal_stages_are_refused_with_the_numbers():
    config = parse_model_config({**FIELDS, "num_hidden_layers": 4})
    with pytest.raises(ConfigError, match="pipeline-parallel-size: 3 does not divide the model's 4 layers"):
        build_model(config, stage=PlannedStage(3, 2))
