from __future__ import annotations

import pytest
import torch

from service.runner.host_blocks import Fp8HostBlocks, PlainHostBlocks
from service.runner.kv_storage import KvLayout

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LAYOUT = KvLayout(2, 4, 3, 64, torch.bfloat16)


def random_block(device: str, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(LAYOUT.shape, generator=generator) * torch.logspace(-3, 3, 64) * scale
    return block.to(torch.bfloat16).to(device)


def there_and_back(blocks: PlainHostBlocks | Fp8HostBlocks, block: torch.Tensor) -> torch.Tensor:
    back = torch.full_like(block, float("nan"))
    blocks.store(block, 1)()
    if block.is_cuda:
        torch.cuda.synchronize()
    blocks.load(back, 1)()
    return back


@pytest.mark.parametrize("device", DEVICES)
def test_plain_blocks_come_back_as_they_went(device: str):
    block = random_block(device)
    assert torch.equal(there_and_back(PlainHostBlocks(LAYOUT, 2, pinned=device == "cuda"), block), block)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_compressed_ones_within_the_stated_error(device: str, scale: float):
    block = random_block(device, scale)
    back = there_and_back(Fp8HostBlocks(LAYOUT, 2, pinned=device == "cuda"), block).float()
    exact = block.float()
    smallest = exact.abs().amax(-1, keepdim=True) / 448 / 1024
    rounded = exact.abs() / 256  # to bf16 again
    assert ((back - exact).abs() <= torch.maximum(exact.abs() / 16, smallest) + rounded).all()
    assert (back - exact).abs().max() > 0


def test_zeros_stay_zeros_and_a_tokens_nan_stays_its_own():
    block = random_block("cpu")
    block[:, :, 1] = 0
    block[:, :, 2] = float("nan")
    back = there_and_back(Fp8HostBlocks(LAYOUT, 2, pinned=False), block)
    assert (back[:, :, 1] == 0).all()
    assert back[:, :, (0, 3)].isfinite().all()


def test_half_the_memory_of_bf16():
    assert Fp8HostBlocks.block_bytes(LAYOUT) == LAYOUT.block_bytes // 2 + LAYOUT.block_bytes // 2 // 64 * 4
    blocks = Fp8HostBlocks(LAYOUT, 2, pinned=False)
    held = sum(t.numel() * t.element_size() for t in (blocks._elements, blocks._scales))
    assert held == len(blocks) * Fp8HostBlocks.block_bytes(LAYOUT)
