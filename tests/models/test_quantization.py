from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from service.errors import ConfigError, ModelLoadError
from service.models.quantization import (
    FP8_AT_LOAD,
    Fp8Scheme,
    Int4Scheme,
    Int8Scheme,
    check_trains,
    is_bitsandbytes,
    parse_quantization,
)
from tests.models.bitsandbytes_checkpoints import BITSANDBYTES
from tests.models.quantized_checkpoints import FORMATS

SCHEMES = {
    "channels": Fp8Scheme("channel"),
    "tensor": Fp8Scheme("tensor"),
    "auto-fp8": Fp8Scheme("tensor"),
    "blocks": Fp8Scheme("block", (16, 32), "weight_scale_inv"),
    "compressed-blocks": Fp8Scheme("block", (16, 32)),
    "awq": Int4Scheme("awq", 32, has_zeros=True),
    "gptq": Int4Scheme("gptq", 32, has_zeros=True, zero_offset=1),
    "auto-round": Int4Scheme("gptq", 32, has_zeros=True, zero_offset=1),
    "auto-round-awq": Int4Scheme("awq", 32, has_zeros=True),
    "gptq-v2": Int4Scheme("gptq", 32, has_zeros=True),
    "packed": Int4Scheme("packed", 32, has_zeros=False),
    "packed-zeros": Int4Scheme("packed", 32, has_zeros=True),
    "packed-channels": Int4Scheme("packed", None, has_zeros=False),
    "int8-channels": Int8Scheme("bytes"),
    "int8-tensor": Int8Scheme("bytes", is_of_tensor=True),
    "int8-packed": Int8Scheme("packed", 32),
    "int8-packed-channels": Int8Scheme("packed"),
    "gptq-8": Int8Scheme("gptq", 32),
}


def parse(fields, requested=None):
    return parse_quantization({"quantization_config": fields}, requested)


@pytest.mark.parametrize(
    ("ignored", "is_plain"),
    [
        ("language_model.model.layers.0.mlp.down_proj", True),
        (r"re:model\.language_model\.layers\.0\..*", True),
        ("model.text_model.layers.0.mlp.down_proj", True),
        ("model.layers.0.mlp.down_proj", True),
        ("language_model.model.layers.1.mlp.down_proj", False),
        ("re:vision_tower.*", False),
        ("multi_modal_projector", False),
    ],
)
def test_a_linear_of_a_model_with_vision_is_told_by_its_place_in_the_whole(ignored: str, is_plain: bool):
    quantization = replace(parse({**FORMATS["packed"][0], "ignore": [ignored, "lm_head"]}), is_of_text=True)
    assert (quantization.scheme_of("model.layers.0.mlp.down_proj") is None) == is_plain
    assert quantization.scheme_of("lm_head") is None


def test_without_a_word_weights_are_plain():
    assert parse_quantization({}, None) is parse_quantization({"quantization_config": None}, None) is None
    assert parse_quantization({}, "fp8") is FP8_AT_LOAD
    assert FP8_AT_LOAD.is_at_load and not parse(FORMATS["channels"][0]).is_at_load


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_says_how_its_linears_lie(kind):
    quantization = parse(FORMATS[kind][0])
    assert quantization.scheme_of("model.layers.0.self_attn.q_proj") == SCHEMES[kind]
    assert quantization.scheme_of("lm_head") is None
    assert ("int4" in quantization.name) is isinstance(SCHEMES[kind], Int4Scheme)
    assert ("int8" in quantization.name) is isinstance(SCHEMES[kind], Int8Scheme)


@pytest.mark.parametrize("ignored", ["model.layers.3.mlp.gate_proj", "re:.*layers.3.mlp", "layers.3", "gate_proj"])
def test_what_is_ignored_stays_plain(ignored):
    fields = {**FORMATS["channels"][0], "ignore": [ignored]}
    assert parse(fields).scheme_of("model.layers.3.mlp.gate_proj") is None
    assert parse(fields).scheme_of("model.layers.33.mlp.up_proj") is not None


def test_what_a_rule_of_gptqmodels_leaves_alone_stays_plain():
    quantization = parse({**FORMATS["gptq"][0], "dynamic": {r"-:.*mlp\.gate$": {}}})
    assert quantization.scheme_of("model.layers.0.mlp.gate") is None
    assert quantization.scheme_of("model.layers.0.mlp.experts.0.gate_proj") is not None


def test_what_autoround_leaves_at_16_bits_stays_plain():
    left = {"model.layers.0.mlp.gate": {"bits": 16, "data_type": "float"}}
    quantization = parse({**FORMATS["auto-round"][0], "extra_config": left})
    assert quantization.scheme_of("model.layers.0.mlp.gate") is None
    assert quantization.scheme_of("model.layers.0.mlp.gate_proj") is not None


def test_what_autoround_packs_in_the_layouts_of_others():
    facts = {"provider": "auto-round", "autoround_version": "0.15.1", "data_type": "int", "sym": False}
    for kind in ("awq", "gptq"):
        assert parse({**FORMATS[kind][0], **facts}).scheme_of("q_proj") == SCHEMES[kind]


@pytest.mark.parametrize(("kind", "named"), [("nf4, nested", "nf4"), ("fp4", "fp4"), ("int8", "int8")])
def test_of_bitsandbytes_the_tensors_tell_what_is_quantized(kind, named):
    """No linear has a scheme: all are plain once they are read."""
    quantization = parse(BITSANDBYTES[kind][0])
    assert quantization.name == f"bitsandbytes {named}" and quantization.is_dequantized_at_load
    assert quantization.scheme_of("model.layers.0.self_attn.q_proj") is None and not quantization.is_at_load
    assert is_bitsandbytes({"quantization_config": BITSANDBYTES[kind][0]})
    assert not is_bitsandbytes({"quantization_config": FORMATS["awq"][0]}) and not is_bitsandbytes({})


def test_groups_of_linears_may_differ():
    groups = {
        "group_0": {**FORMATS["packed"][0]["config_groups"]["group_0"], "targets": ["re:.*mlp.*"]},
        "group_1": {**FORMATS["channels"][0]["config_groups"]["group_0"], "targets": ["re:.*self_attn.*"]},
    }
    quantization = parse({**FORMATS["channels"][0], "config_groups": groups})
    assert quantization.scheme_of("model.layers.0.mlp.up_proj") == SCHEMES["packed"]
    assert quantization.scheme_of("model.layers.0.self_attn.o_proj") == SCHEMES["channels"]
    assert quantization.scheme_of("other") is None
    assert quantization.name == "compressed-tensors fp8 and int4"


def weights(kind, **changes):
    """The format's fields with others for the weights."""
    fields = FORMATS[kind][0]
    group = fields["config_groups"]["group_0"]
    return {**fields, "config_groups": {"group_0": {**group, "weights": {**group["weights"], **changes}}}}


REFUSED = [
    (
        {**FORMATS["auto-round"][0], "packing_format": "auto_round:exllamav2"},
        "packing_format 'auto_round:exllamav2' is",
    ),
    ({**FORMATS["auto-round"][0], "extra_config": {"lm_head": {"bits": 8}}}, "extra_config {'lm_head'"),
    ({**FORMATS["auto-round"][0], "data_type": "mx_fp"}, "data_type 'mx_fp' is not supported"),
    ({**FORMATS["gptq"][0], "data_type": "mx_fp"}, "data_type 'mx_fp' is not supported"),
    ({"quant_method": "hqq", "load_in_4bit": True}, "quant_method 'hqq' is not supported; supported: comp"),
    ({"quant_method": "bitsandbytes"}, "one of load_in_4bit and load_in_8bit must be true; serve"),
    ({**BITSANDBYTES["nf4"][0], "load_in_8bit": True}, "one of load_in_4bit and load_in_8bit must be true"),
    ({**BITSANDBYTES["nf4"][0], "bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4' is not supported"),
    ({**BITSANDBYTES["int8"][0], "llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight True is not supported"),
    ({**BITSANDBYTES["nf4"][0], "bnb_2bit": 1}, "bnb_2bit 1 is not supported"),
    ({"bits": 4}, "quant_method None is not supported"),
    ([], "is not a JSON object"),
    ({**FORMATS["awq"][0], "bits": 8}, "bits 8 is not supported"),
    ({**FORMATS["awq"][0], "version": "gemv"}, "version 'gemv'"),
    ({**FORMATS["awq"][0], "zero_point": False}, "zero_point False"),
    ({**FORMATS["awq"][0], "group_size": 48}, "group_size 48 is not supported, only powers of two from 32"),
    ({**FORMATS["awq"][0], "rotation": "hadamard"}, r"quantization_config\.rotation 'hadamard' is not supported;"),
    ({**FORMATS["gptq"][0], "desc_act": True}, r"desc_act true .* use a checkpoint with desc_act false"),
    ({**FORMATS["gptq"][0], "bits": 3}, "bits 3"),
    ({**FORMATS["gptq"][0], "lm_head": True}, "lm_head True"),
    ({**FORMATS["gptq"][0], "dynamic": {"+:.*": {"bits": 8}}}, "dynamic"),
    ({**FORMATS["gptq"][0], "dynamic": {"-:(": {}}}, r"dynamic: 're:\(' is not a valid regular"),
    ({**FORMATS["gptq"][0], "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    ({**FORMATS["blocks"][0], "weight_block_size": [128]}, r"weight_block_size \[128\]"),
    ({**FORMATS["blocks"][0], "fmt": "e5m2"}, "fmt 'e5m2'"),
    ({**FORMATS["channels"][0], "ignore": ["re:("]}, r"ignore: 're:\(' is not a valid regular"),
    ({**FORMATS["channels"][0], "ignore": "lm_head"}, "ignore is not a list of names"),
    ({**FORMATS["channels"][0], "config_groups": {}}, "config_groups is missing"),
    ({**FORMATS["channels"][0], "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    ({**FORMATS["channels"][0], "transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    (weights("channels", num_bits=4), r"group_0\.weights .*'num_bits': 4"),
    (weights("channels", dynamic=True), r"group_0\.weights\.dynamic True"),
    (weights("channels", strategy="row"), r"group_0\.weights\.strategy 'row'"),
    (weights("packed", actorder="group"), r"group_0\.weights\.actorder 'group'"),
    (
        weights("int8-channels", symmetric=False),
        r"weights\.symmetric false .*int8 weights with zeros are not read; serve",
    ),
    (weights("int8-channels", strategy="block"), r"group_0\.weights\.strategy 'block'"),
    (weights("int8-channels", num_bits=6), r"group_0\.weights .*'num_bits': 6"),
    ({**FORMATS["int8-channels"][0], "format": "marlin-24"}, "format 'marlin-24' is not supported"),
    (weights("int8-packed", group_size=48), "group_size 48 is not supported, only powers of two from 32"),
    ({**FORMATS["gptq-8"][0], "sym": False}, "sym False"),
    (weights("packed", codebook="nf4"), r"group_0\.weights\.codebook 'nf4'"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=[named[:40] for _, named in REFUSED])
def test_what_is_not_understood_is_refused_by_name(fields, named):
    with pytest.raises(ModelLoadError, match=named) as refused:
        parse(fields)
    assert len(str(refused.value)) < 400


def test_plain_weights_are_quantized_once():
    with pytest.raises(ModelLoadError, match=r"quantization: fp8 is for unquantized weights; .* awq int4 already"):
        parse(FORMATS["awq"][0], "fp8")
    with pytest.raises(
        ModelLoadError, match=r"quantization: fp8 is for unquantized weights; .* bitsandbytes nf4 already"
    ):
        parse(BITSANDBYTES["nf4"][0], "fp8")
    assert parse(FORMATS["channels"][0], "fp8").name.endswith("fp8")


def test_only_plain_weights_are_trained_beside():
    check_trains(None)
    check_trains(parse(BITSANDBYTES["nf4"][0]))
    with pytest.raises(ConfigError, match=r"fine-tuning: the weights are quantized \(fp8\)"):
        check_trains(FP8_AT_LOAD)


def test_it_is_told_before_torch_is_there():
    code = "import sys, service.models.quantization; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
