"""A model of transformers is one of ours: our own file's for the same checkpoint is its twin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from service.errors import ModelLoadError
from service.layers.linear_method import KernelRows
from service.models.registry import open_model
from service.models.transformers_backend.model import TransformersModel
from service.models.weight_loader import load_weights
from tests.models.checkpoints import SMALL, llama, opt, qwen3
from tests.models.forward import logits


@pytest.mark.parametrize(
    ("save", "changes"), [(llama, {"attention_bias": True}), (qwen3, {"tie_word_embeddings": True}), (opt, {})]
)
def test_the_same_logits_as_our_own_file(save, changes, tmp_path: Path):
    folder = save(tmp_path, **changes)
    tokens = torch.randint(0, 301, (70,)).tolist()
    ours, theirs = logits(folder, tokens), logits(folder, tokens, implementation="transformers")
    torch.testing.assert_close(theirs, ours, atol=2e-4, rtol=2e-4)


def test_the_same_linears_by_the_same_names(tmp_path: Path):
    """So the same adapters fit."""
    folder = llama(tmp_path)
    ours, theirs = (open_model(folder, impl).model.block_linears() for impl in ("native", "transformers"))
    assert [[each.names for each in block] for block in theirs] == [[each.names for each in block] for block in ours]


def test_every_projection_takes_a_method_of_ours(tmp_path: Path):
    folder = llama(tmp_path)
    model = open_model(folder, "transformers").model
    assert len(model.projections) == 2 * 4 + 1
    tokens = torch.randint(0, 301, (9,)).tolist()
    plain = logits(folder, tokens, KernelRows(), implementation="transformers")
    torch.testing.assert_close(plain, logits(folder, tokens), atol=2e-4, rtol=2e-4)


def test_in_bf16_what_is_to_be_exact_stays_in_fp32(tmp_path: Path):
    """Angles, and what transformers keeps so: DeepSeek's biases of experts, a buffer that checkpoints hold."""
    sizes = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
             "moe_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
             "qk_rope_head_dim": 8, "v_head_dim": 8}  # fmt: skip
    theirs = DeepseekV3ForCausalLM(DeepseekV3Config(**{**SMALL, **sizes, "num_key_value_heads": 4}))
    name = "layers.1.mlp.gate.e_score_correction_bias"
    theirs.model.get_buffer(name).copy_(torch.randn(4))
    theirs.save_pretrained(tmp_path)
    config, model = open_model(tmp_path)
    assert isinstance(model, TransformersModel) and config.head_dim == 16 and config.num_kv_heads == 4
    model.materialize(torch.bfloat16, torch.device("cpu"))
    load_weights(model, tmp_path)
    assert torch.equal(model.base.get_buffer(name), theirs.model.get_buffer(name))
    assert torch.equal(model.base.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)
    in_bf16 = DeepseekV3ForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).model
    dtypes = {name: each.dtype for name, each in in_bf16.named_parameters()}
    router = "layers.1.mlp.gate.weight"  # in fp32 from transformers 5.24 on
    assert model.base.get_parameter(router).dtype == dtypes.pop(router)
    assert set(dtypes.values()) == {torch.bfloat16}
    assert {each.dtype for name, each in model.base.named_parameters() if name != router} == {torch.bfloat16}


def test_the_rows_that_are_read_are_the_only_ones_returned(tmp_path: Path):
    folder = llama(tmp_path)
    tokens = torch.randint(0, 301, (20,)).tolist()
    whole = logits(folder, tokens, implementation="transformers")
    rows = torch.tensor([19])
    torch.testing.assert_close(logits(folder, tokens, implementation="transformers", rows=rows), whole[rows])


def test_a_checkpoint_that_lacks_weights_is_refused_by_their_names(tmp_path: Path):
    folder = llama(tmp_path, tie_word_embeddings=False)
    other = llama(tmp_path / "three", num_hidden_layers=3)
    (other / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    model = open_model(other, "transformers").model
    model.materialize(torch.float32, torch.device("cpu"))
    with pytest.raises(ModelLoadError, match=r"missing: model\.layers\.2\."):
        load_weights(model, other)
