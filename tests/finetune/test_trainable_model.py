from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from service.errors import InvalidRequest
from service.finetune.trainable_model import check_trainable, parameter_layout
from service.lora.adapter_folder import AdapterSite
from tests.equivalence.hf_model import SMALL
from tests.finetune.served import served_model
from tests.models.checkpoints import gemma2, phi3


def test_a_family_without_a_backward_pass_is_refused_by_name(model_folders: Mapping[str, Path]):
    with pytest.raises(InvalidRequest, match="Gpt2 models cannot be trained; Llama, Mistral, Qwen2 and Qwen3"):
        check_trainable(served_model(model_folders["gpt2"]))


def test_another_activation_is_refused(tmp_path: Path):
    LlamaForCausalLM(LlamaConfig(**SMALL, hidden_act="gelu")).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match="is not SiLU"):
        check_trainable(served_model(tmp_path))


def test_a_mixture_of_experts_is_refused(tmp_path: Path):
    config = MixtralConfig(**SMALL, num_local_experts=4)
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(InvalidRequest, match="mixture of experts cannot be trained; Llama, Mistral"):
        check_trainable(served_model(tmp_path))


def test_models_of_merged_tensors_and_gemma_are_refused(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="query, key and value are one tensor cannot be trained"):
        check_trainable(served_model(phi3(tmp_path / "phi3")))
    with pytest.raises(InvalidRequest, match="Gemma models cannot be trained"):
        check_trainable(served_model(gemma2(tmp_path / "gemma")))


def test_sites_are_those_of_the_targets_in_the_models_order(model_folders: Mapping[str, Path]):
    model = served_model(model_folders["llama"])
    assert len(parameter_layout(model, (), rank=1).sites) == 2 * 7
    assert dict(parameter_layout(model, ("v_proj", "q_proj"), rank=1).sites) == {
        "model.layers.0.self_attn.q_proj": AdapterSite(64, 64),
        "model.layers.0.self_attn.v_proj": AdapterSite(64, 32),
        "model.layers.1.self_attn.q_proj": AdapterSite(64, 64),
        "model.layers.1.self_attn.v_proj": AdapterSite(64, 32),
    }


def test_a_target_that_the_model_has_not_is_refused_by_name(model_folders: Mapping[str, Path]):
    with pytest.raises(InvalidRequest, match="no linear layer 'qkv'; it has down_proj, gate_proj"):
        parameter_layout(served_model(model_folders["llama"]), ("q_proj", "qkv"), rank=1)
