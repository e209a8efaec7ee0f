"""The text part of a model with vision; that its text is `generate`'s is in tests/equivalence/test_families.py."""

from __future__ import annotations

import pytest

from service.models.model_config import parse_model_config
from service.models.text_part import text_fields, text_name

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 9}


def with_vision(architecture: str, **fields: object) -> dict[str, object]:
    return {"architectures": [f"{architecture}ForConditionalGeneration"], **fields}


def test_its_fields_are_those_of_the_text_with_what_the_whole_says_of_it():
    text = {**SIZES, "model_type": "qwen3_vl_text", "head_dim": 4, "tie_word_embeddings": False}
    fields = with_vision(
        "Qwen3VL", text_config=text, tie_word_embeddings=True, torch_dtype="bfloat16", vision_config={}
    )
    config = parse_model_config(fields)
    assert (config.architecture, config.head_dim) == ("Qwen3ForCausalLM", 4)
    assert config.tie_word_embeddings and config.checkpoint_dtype == "bfloat16"


def test_an_early_file_has_the_texts_fields_among_its_own():
    rope = {"type": "mrope", "mrope_section": [1, 1]}
    fields = with_vision("Qwen2VL", **SIZES, model_type="qwen2_vl", rope_scaling=rope, vision_config={})
    config = parse_model_config(fields)
    assert config.architecture == "Qwen2ForCausalLM" and config.rope is not None and config.rope.scaling is None


@pytest.mark.parametrize(
    "fields",
    [
        with_vision("Mllama", text_config={**SIZES, "model_type": "llama"}),
        with_vision("Llava", text_config={**SIZES, "model_type": "nobody_knows"}),
        {"architectures": ["LlamaForCausalLM"], **SIZES, "model_type": "llama"},
    ],
)
def test_any_other_model_has_none(fields):
    assert text_fields(fields) is None


@pytest.mark.parametrize(
    ("stored", "own"),
    [
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.text_model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("visual.blocks.0.attn.qkv.weight", None),
        ("model.visual.patch_embed.proj.weight", None),
        ("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", None),
        ("multi_modal_projector.linear_1.weight", None),
    ],
)
def test_names(stored: str, own: str | None):
    assert text_name(stored) == own
