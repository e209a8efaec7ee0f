"""A pool on the modelled device, small enough to be scarce."""

from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.modelled_device import ModelledDevice
from loadtest.offline.serving_system import OfflineRequest


def pool(num_blocks: int = 16, block_size: int = 4, max_num_seqs: int = 8, num_host_blocks: int = 0) -> KvPool:
    device = ModelledDevice(block_size)
    return KvPool(
        device,
        device.clock(),
        num_blocks,
        block_size,
        max_model_len=64,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=32,
        vocab_size=1000,
        num_host_blocks=num_host_blocks,
        num_spare_blocks=64 // block_size,
    )


def request(request_id: int, prompt: int = 4, output: int = 4, arrival_s: float = 0.0, n: int = 1) -> OfflineRequest:
    return OfflineRequest(request_id, arrival_s, tuple(10 + request_id + i for i in range(prompt)), output, n)
