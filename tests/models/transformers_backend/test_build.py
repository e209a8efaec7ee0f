"""config.json -> a model of transformers, and our words for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from service.errors import ModelLoadError
from service.models.transformers_backend.build import build_with_transformers
from tests.models.checkpoints import llama, mistral


def test_what_our_own_words_say_of_the_same_file(tmp_path: Path):
    from service.models.model_config import load_model_config

    folder = mistral(tmp_path)
    ours, theirs = load_model_config(folder), build_with_transformers(folder).config
    names = (
        "architecture vocab_size hidden_size intermediate_size num_layers num_heads num_kv_heads head_dim"
        " sliding_windows max_position_embeddings tie_word_embeddings checkpoint_dtype eos_token_ids bos_token_id"
    )
    assert {name: getattr(theirs, name) for name in names.split()} == {
        name: getattr(ours, name) for name in names.split()
    }


def test_a_head_that_looks_at_more_than_hidden_states_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def forward(self, inputs_embeds, **_):
        return self.model(inputs_embeds=inputs_embeds).hidden_states[-1]

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    with pytest.raises(ModelLoadError, match="'LlamaForCausalLM' is not supported: its head depends on more than one"):
        build_with_transformers(llama(tmp_path))


def test_it_takes_no_memory(tmp_path: Path):
    model = build_with_transformers(llama(tmp_path)).model
    assert {each.device.type for each in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"model_type": "nobody_knows"}, "transformers cannot read it"),
        (
            {"model_type": "nobody_knows", "auto_map": {"AutoConfig": "configuration_x.X"}},
            "auto_map: the model needs code from its own folder",
        ),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "is not supported|cannot build a language model"),
    ],
)
def test_what_transformers_cannot_build_is_refused(fields, why, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["X"], **fields}))
    (tmp_path / "configuration_x.py").write_text("raise SystemExit('never run')")
    with pytest.raises(ModelLoadError, match=why):
        build_with_transformers(tmp_path)
    assert torch.get_default_dtype() is torch.float32
