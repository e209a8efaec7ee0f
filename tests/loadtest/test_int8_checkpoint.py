from __future__ import annotations

import torch
from safetensors.torch import load_file

from loadtest.int8_checkpoint import main
from service.models.model_config import load_model_config
from tests.models.checkpoints import llama
from tests.models.forward import logits


def test_the_checkpoint_is_served_and_near_the_plain_one(tmp_path):
    torch.manual_seed(0)
    plain = llama(tmp_path / "plain", initializer_range=0.05)
    main([str(plain), str(tmp_path / "new")])
    quantization = load_model_config(tmp_path / "new").quantization
    assert quantization is not None and quantization.name == "compressed-tensors int8"
    before, after = (load_file(folder / "model.safetensors") for folder in (plain, tmp_path / "new"))
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    want, got = logits(plain, [1, 5, 9, 200, 33]), logits(tmp_path / "new", [1, 5, 9, 200, 33])
    assert 0 < (got - want).norm() < 0.02 * want.norm()
