from __future__ import annotations

import gc

import pytest
import torch

from service.runner.cuda_memory import CudaMemory
from service.runner.memory_profile import profile_device

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")


class OwnMemory(CudaMemory):
    """Of a device that nobody else uses, as far as can be seen: free is what this process's allocator has not taken."""

    def free_bytes(self):
        return self.total_bytes - self.reserved_bytes()


def test_a_profile_counts_what_this_process_takes():
    kept = []
    gc.collect()  # what tests before have left keeps memory that the allocator would take again
    torch.cuda.empty_cache()

    def iteration():
        torch.empty(300 << 20, dtype=torch.uint8, device=DEVICE)

    def capture(sizes):
        kept.append(torch.empty((20 if kept else 100) << 20, dtype=torch.uint8, device=DEVICE))

    memory = OwnMemory(DEVICE)
    ledger = profile_device(memory, 1000, 0.5, None, iteration, capture, [1, 2, 4], 7 << 20)
    assert ledger.activations_bytes == 300 << 20
    assert ledger.graphs_bytes == (100 + 2 * 20) << 20
    assert ledger.other_bytes == 0
    held = memory.allocated_bytes() - (120 << 20)
    spent = held + ledger.activations_bytes + ledger.graphs_bytes + (7 << 20)
    assert ledger.kv_cache_bytes == int(ledger.total_bytes * 0.5) - spent


def test_what_is_free_lacks_at_least_what_this_process_has_taken():
    memory = CudaMemory(DEVICE)
    kept = torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE)
    assert memory.allocated_bytes() >= kept.nbytes
    assert memory.reserved_bytes() >= memory.allocated_bytes()
    assert 0 <= memory.free_bytes() <= memory.total_bytes - memory.reserved_bytes()
