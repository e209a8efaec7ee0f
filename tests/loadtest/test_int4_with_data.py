from __future__ import annotations

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from loadtest.int4_checkpoint import round_groups, write_int4
from loadtest.int4_with_data import LearnedGroups, learn
from tests.models.checkpoints import llama
from tests.models.forward import logits


def test_before_a_step_groups_are_those_of_plain_rounding():
    weights = {"a": torch.randn(6, 64), "b": torch.randn(4, 32)}
    groups = LearnedGroups(weights, 32)
    for name, weight in weights.items():
        elements, zeros, scales = round_groups(weight, 32)
        assert all(map(torch.equal, groups.rounded()[name], (elements, zeros, scales)))
        back = (elements - zeros.repeat_interleave(32, 1)) * scales.repeat_interleave(32, 1)
        assert torch.equal(groups.weights()[name], back.bfloat16())


def test_gradients_pass_the_rounding_and_reach_scales():
    groups = LearnedGroups({"a": torch.randn(6, 64)}, 32)
    groups.weights()["a"].float().square().sum().backward()
    assert groups.places.grad is not None and (groups.places.grad != 0).float().mean() > 0.5
    assert groups.factors.grad is not None and (groups.factors.grad != 0).all()


def test_a_learned_checkpoint_is_nearer_to_the_plain_one_than_a_rounded_one(tmp_path):
    plain = llama(tmp_path / "plain", initializer_range=0.1)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    windows = torch.randint(3, model.config.vocab_size, (8, 32), generator=torch.Generator().manual_seed(0))
    write_int4(plain, tmp_path / "rounded", 32, {})
    write_int4(plain, tmp_path / "learned", 32, learn(model, windows, 32, 60, 4, 5e-3))
    assert load_file(tmp_path / "learned" / "model.safetensors").keys() == (
        load_file(tmp_path / "rounded" / "model.safetensors").keys()
    )
    prompt = windows[0].tolist()
    wanted = logits(plain, prompt).log_softmax(-1)
    rounded, learned = (
        (wanted.exp() * (wanted - logits(tmp_path / kind, prompt).log_softmax(-1))).sum(-1).mean()
        for kind in ("rounded", "learned")
    )
    assert learned < 0.8 * rounded
