from __future__ import annotations

import json

import torch
from safetensors.torch import load_file

from loadtest.int4_checkpoint import main, pack_words, round_groups
from service.models.model_config import load_model_config
from tests.models.checkpoints import llama
from tests.models.forward import logits


def test_words_hold_neighbours_from_their_lowest_bits_on():
    values = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 15]])
    assert pack_words(values).tolist() == [[0xF7654321 - (1 << 32)]]


def test_a_group_is_rounded_as_finely_as_four_bits_can():
    weight = torch.randn(6, 64)
    elements, zeros, scales = round_groups(weight, 32)
    assert elements.min() >= 0 and elements.max() <= 15 and scales.shape == (6, 2)
    back = (elements.view(6, 2, 32) - zeros[:, :, None]) * scales[:, :, None]
    spread = weight.view(6, 2, 32).amax(2) - weight.view(6, 2, 32).amin(2)
    assert ((back - weight.view(6, 2, 32)).square().mean(2).sqrt() < spread / 15 / 3).all()


def test_the_checkpoint_is_served_and_near_the_plain_one(tmp_path):
    torch.manual_seed(0)
    plain = llama(tmp_path / "plain", initializer_range=0.05)
    main([str(plain), str(tmp_path / "new")])
    assert load_model_config(tmp_path / "new").quantization is not None
    assert json.loads((tmp_path / "new" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    before, after = (load_file(folder / "model.safetensors") for folder in (plain, tmp_path / "new"))
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    want, got = logits(plain, [1, 5, 9, 200, 33]), logits(tmp_path / "new", [1, 5, 9, 200, 33])
    assert (got - want).norm() < 0.2 * want.norm()
