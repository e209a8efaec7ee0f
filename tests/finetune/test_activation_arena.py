from __future__ import annotations

import pytest
import torch

from service.finetune.activation_arena import ActivationArena, LayerShape

SHAPE = LayerShape(
    hidden_size=12,
    qkv_size=20,
    attended_size=8,
    num_heads=2,
    intermediate_size=5,
    qkv_rank=6,
    output_rank=0,
    gate_up_rank=3,
    down_rank=3,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 37])
def test_every_tensor_has_its_own_memory_and_all_fit(num_tokens: int, dtype: torch.dtype):
    arena = ActivationArena([SHAPE] * 3, dtype)
    memory = torch.zeros(arena.num_bytes(num_tokens), dtype=torch.uint8)
    kept = arena.activations(memory, num_tokens)
    tensors = [*(tensor for layer in kept.layers for tensor in layer), kept.stream, kept.gradient]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    for number, tensor in enumerate(tensors):
        assert (tensor == number).all()
        assert tensor.data_ptr() % 4 == 0
        assert tensor.is_contiguous()


def test_an_8b_model_takes_some_94_kb_a_token_and_layer():
    """The least that a frozen base needs; the rest is what adapters of rank 16 make of the inputs."""
    shape = LayerShape(4096, 6144, 4096, 32, 14336, 48, 16, 32, 16)
    num_bytes = ActivationArena([shape] * 32, torch.bfloat16).num_bytes(2048)
    assert 93_000 < num_bytes / 2048 / 32 < 97_000
