"""Whose modules compute a model."""

from __future__ import annotations

import importlib.util

import pytest

from service.errors import ModelLoadError
from service.models.implementation import choose_implementation

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 9,
}
OTHER = {"architectures": ["SomethingForCausalLM"]}


def test_a_file_of_ours_comes_first_unless_transformers_is_asked_for():
    assert choose_implementation(LLAMA, "auto") == choose_implementation(LLAMA, "native") == "native"
    assert choose_implementation(LLAMA, "transformers") == choose_implementation(OTHER, "auto") == "transformers"


def test_what_ours_do_not_serve_is_named():
    with pytest.raises(ModelLoadError, match="architecture 'SomethingForCausalLM' is not supported; supported: Llama"):
        choose_implementation(OTHER, "native")
    with pytest.raises(ModelLoadError, match="hidden_size is missing"):
        choose_implementation({"architectures": ["LlamaForCausalLM"]}, "auto")
    with pytest.raises(ModelLoadError, match="quant_method 'x' is not supported"):
        choose_implementation({**OTHER, "quantization_config": {"quant_method": "x"}}, "auto")


def test_without_transformers_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match=r"'SomethingForCausalLM' .* pip install 'headrace\[transformers\]'"):
        choose_implementation(OTHER, "auto")
    assert choose_implementation(LLAMA, "auto") == "native"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"is_encoder_decoder": True}, "it is an encoder-decoder model"),
        ({"model_type": "falcon_h1"}, "its layers keep a state besides keys and values"),
        ({"layer_types": ["mamba", "attention", "mamba"]}, "its layers of kind mamba do not keep keys and values"),
        ({"text_config": {"layer_types": ["full_attention", "conv"]}}, "its layers of kind conv do not keep"),
    ],
)
def test_what_has_another_memory_is_refused_before_its_weights_are_fetched(fields, why):
    with pytest.raises(ModelLoadError, match=f"'SomethingForCausalLM' is not supported: {why}"):
        choose_implementation({**OTHER, **fields}, "auto")


def test_kinds_of_attention_and_what_is_no_list_of_kinds_are_left_to_transformers():
    for kinds in (["attention", "sliding_attention"], "mamba", [1, None], None):
        assert choose_implementation({**OTHER, "layer_types": kinds}, "auto") == "transformers"


def test_weights_of_few_bits_decide_nothing():
    assert choose_implementation(OTHER, "auto", "fp8") == choose_implementation(LLAMA, "transformers", "fp8")
    quantized = {"quantization_config": {"quant_method": "fp8"}}
    assert choose_implementation({**OTHER, **quantized}, "auto") == "transformers"
    assert choose_implementation({**LLAMA, **quantized}, "auto") == "native"
