from __future__ import annotations

import pytest

from service.errors import ModelLoadError
from service.models.config_fields import ConfigFields
from service.models.sliding_windows import parse_sliding_windows


def parse(architecture, **written):
    return parse_sliding_windows(architecture, ConfigFields(written, "config.json"), num_layers=2)


SLIDES = {"use_sliding_window": True, "sliding_window": 8}
WINDOWS = [
    ("MistralForCausalLM", {}, (4096, 4096)),
    ("MistralForCausalLM", {"sliding_window": 8}, (8, 8)),
    ("MistralForCausalLM", {"sliding_window": None}, (None, None)),
    ("Qwen2ForCausalLM", {"sliding_window": 8}, (None, None)),
    ("Qwen2ForCausalLM", SLIDES, (None, None)),  # from layer 28 on, if nothing is said
    ("Qwen2ForCausalLM", {**SLIDES, "max_window_layers": 1}, (None, 8)),
    ("Qwen3ForCausalLM", {**SLIDES, "max_window_layers": 0}, (8, 8)),
    ("Qwen3ForCausalLM", {**SLIDES, "layer_types": ["sliding_attention", "full_attention"]}, (8, None)),
    ("LlamaForCausalLM", {"layer_types": ["full_attention"] * 2}, (None, None)),
]


@pytest.mark.parametrize(("name", "changes", "want"), WINDOWS)
def test_which_layers_slide(name, changes, want):
    assert parse(name, **changes) == want


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("LlamaForCausalLM", {"use_sliding_window": True}, "use_sliding_window True is not supported"),
        (
            "LlamaForCausalLM",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types has 'sliding_attention'",
        ),
        ("LlamaForCausalLM", {"layer_types": ["full_attention"]}, "layer_types must name"),
        ("LlamaForCausalLM", {"layer_types": "full_attention"}, "layer_types must name"),
        ("LlamaForCausalLM", {"layer_types": [{}, {}]}, "layer_types must name"),
        ("LlamaForCausalLM", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types must name"),
        ("MistralForCausalLM", {"sliding_window": -1}, "sliding_window must be a positive number"),
        ("Qwen2ForCausalLM", {**SLIDES, "max_window_layers": -1}, "max_window_layers must be a positive number"),
    ],
    ids=str,
)
def test_faults_name_the_field(name, changes, named):
    with pytest.raises(ModelLoadError, match=named):
        parse(name, **changes)
