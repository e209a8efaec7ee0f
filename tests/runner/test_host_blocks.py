from __future__ import annotations

import pytest
import torch

from service.runner import host_blocks
from service.runner.host_blocks import Copy, Fp8HostBlocks, PlainHostBlocks
from service.runner.kv_storage import KvLayout

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LAYOUT = KvLayout(2, 4, 3, 64, torch.bfloat16)


def random_block(device: str, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(LAYOUT.shape, generator=generator) * torch.logspace(-3, 3, 64) * scale
    return block.to(torch.bfloat16).to(device)


def there_and_back(host: PlainHostBlocks | Fp8HostBlocks, block: torch.Tensor) -> torch.Tensor:
    """By place 1, from block 2 to block 0; the others stay."""
    blocks = torch.full((3, *block.shape), 3.0, dtype=block.dtype, device=block.device)
    blocks[2] = block
    run(host.store(blocks, (2,), (1,)))
    blocks[2] = 3
    run(host.load(blocks, (0,), (1,)))
    assert (blocks[1:] == 3).all()
    return blocks[0]


def run(copies: list[Copy]) -> None:
    for copy in copies:
        copy()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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


@pytest.mark.parametrize("kind", [PlainHostBlocks, Fp8HostBlocks])
@pytest.mark.parametrize("device", DEVICES)
def test_many_small_blocks_come_back_from_few_launches(kind, device: str, monkeypatch: pytest.MonkeyPatch):
    """The same as one by one, whatever the order, in pieces that have room in a bounded memory."""
    monkeypatch.setattr(host_blocks, "_MOVED_AT_ONCE", 7 * LAYOUT.block_bytes)
    monkeypatch.setattr(host_blocks, "_COMPRESSED_AT_ONCE", 7 * LAYOUT.block_bytes)
    host = kind(LAYOUT, 40, pinned=device == "cuda")
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randn(30, *LAYOUT.shape, generator=generator).to(torch.bfloat16).to(device)
    before = blocks.clone()
    ids = tuple(torch.randperm(30, generator=generator)[:24].tolist())
    places = tuple(torch.randperm(40, generator=generator)[:24].tolist())
    left, arrived = host.store(blocks, ids, places), host.load(blocks, ids[::-1], places[::-1])
    assert len(left) == len(arrived) == 4
    run(left)
    blocks[list(ids)] = float("nan")
    run(arrived)
    alone = before.clone()
    for block_id, place in zip(ids, places, strict=True):
        run(host.store(before, (block_id,), (place,)))
        run(host.load(alone, (block_id,), (place,)))
    assert torch.equal(blocks, alone)
    assert kind is Fp8HostBlocks or torch.equal(blocks, before)


@pytest.mark.parametrize(
    ("device", "border"), [("cpu", 8 << 10), pytest.param("cuda", 512 << 10, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize(("share", "num_copies"), [(2, 1), (1, 8)])
def test_a_block_that_a_copy_of_its_own_pays_for_has_one(device: str, border: int, share: int, num_copies: int):
    """Half of the border's bytes, and as many as them."""
    layout = KvLayout(1, border // share // 256, 1, 64, torch.bfloat16)
    assert layout.block_bytes == border // share
    host = PlainHostBlocks(layout, 8, pinned=device == "cuda")
    blocks = torch.empty(8, *layout.shape, dtype=layout.dtype)
    assert len(host.store(blocks, range(8), range(8))) == num_copies


def test_half_the_memory_of_bf16():
    assert Fp8HostBlocks.block_bytes(LAYOUT) == LAYOUT.block_bytes // 2 + LAYOUT.block_bytes // 2 // 64 * 4
    blocks = Fp8HostBlocks(LAYOUT, 2, pinned=False)
    held = sum(t.numel() * t.element_size() for t in (blocks._elements, blocks._scales))
    assert held == len(blocks) * Fp8HostBlocks.block_bytes(LAYOUT)
