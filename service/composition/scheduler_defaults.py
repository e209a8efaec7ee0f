"""What an iteration may have and how many tokens may wait, unless the settings say: chosen by the machine."""

from __future__ import annotations

from service.config import CacheConfig
from service.scheduler.chunk_budget import USUAL_TOKENS

NUM_SEQS = 256
NUM_SEQS_WITH_MUCH_MEMORY = 512
NUM_SEQS_OF_LARGE_MODELS = 1024

MUCH_MEMORY_BYTES = 64 << 30
LARGE_WEIGHTS_BYTES = 8 << 30
"""One H200 reads this much in 2 ms. More sequences in an iteration share that reading. A smaller model has little to
share, and with that many streams the host is its limit (loadtest/log/serving.md)."""

TOKENS_A_SEQUENCE = 500
"""For which each of so many sequences must find room in the KV cache."""

BUDGET_ON_CPU = 512
"""What a CPU computes in some tens of milliseconds to a second, so that prompts do not stall decodes."""

BUDGET_WITH_MUCH_MEMORY = 2 * USUAL_TOKENS
"""For deep queues (chunk_budget.py); the activations of so many tokens of an 8B model take half a gigabyte."""

SHARE_OF_WAITING = 16
"""One part in so many is for waiting prompts; four, if they are alike (MAX_SHARED_FACTOR in engine/async_engine.py)."""

BYTES_A_WAITING_TOKEN = 64
"""Of host memory that a waiting prompt's token takes: its id as an object of 32 bytes and three lists with its address,
of the call, the request and the sequence. Measured: 60 (loadtest/log/robustness.md)."""


def default_num_seqs(device_bytes: int, weights_bytes: int, kv_token_bytes: int, cache: CacheConfig) -> int:
    """Of max-num-seqs, by the memory, the weights that each step reads and the room for KV blocks.

    device_bytes: of a GPU's memory. kv_token_bytes: of a token's keys and values.
    """
    if device_bytes < MUCH_MEMORY_BYTES:
        return NUM_SEQS
    if weights_bytes < LARGE_WEIGHTS_BYTES:
        return NUM_SEQS_WITH_MUCH_MEMORY
    room_bytes = cache.memory_bytes
    if room_bytes is None:
        room_bytes = int(cache.memory_utilization * device_bytes) - weights_bytes
    has_room = room_bytes >= NUM_SEQS_OF_LARGE_MODELS * TOKENS_A_SEQUENCE * kv_token_bytes
    return NUM_SEQS_OF_LARGE_MODELS if has_room else NUM_SEQS_WITH_MUCH_MEMORY


def default_budget(device_bytes: int, *, is_gpu: bool) -> int:
    """Of max-num-batched-tokens. device_bytes: of the device's memory."""
    if not is_gpu:
        return BUDGET_ON_CPU
    return BUDGET_WITH_MUCH_MEMORY if device_bytes >= MUCH_MEMORY_BYTES else USUAL_TOKENS


def default_waiting_tokens(host_bytes: int) -> int:
    """Of max-waiting-tokens: what waiting prompts may take of the host's memory. How long they may wait is
    max-waiting-seconds' to say, since a token takes a microsecond on one device and a millisecond on another.

    host_bytes: of the host's memory, or of what the process's control group may use of it.
    """
    return max(1, host_bytes // SHARE_OF_WAITING // BYTES_A_WAITING_TOKEN)
