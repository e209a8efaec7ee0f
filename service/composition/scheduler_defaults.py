"""Defaults of max-num-seqs, max-num-batched-tokens and max-waiting-tokens, by the machine."""

from __future__ import annotations

from service.config import CacheConfig
from service.scheduler.chunk_budget import USUAL_TOKENS

NUM_SEQS = 256
NUM_SEQS_WITH_MUCH_MEMORY = 512
NUM_SEQS_OF_LARGE_MODELS = 1024

MUCH_MEMORY_BYTES = 64 << 30
LARGE_WEIGHTS_BYTES = 8 << 30
"""One H200 reads this much in 2 ms. More sequences in an iteration share that reading. With smaller weights there is
little to share, and with that many streams the host is the limit (loadtest/log/serving.md)."""

TOKENS_A_SEQUENCE = 500
"""The KV cache must have room for this many tokens for each of the sequences."""

BUDGET_ON_CPU = 512
"""What a CPU computes in some tens of milliseconds to a second, so that prompts do not stall decodes."""

BUDGET_WITH_MUCH_MEMORY = 2 * USUAL_TOKENS
"""For deep queues (chunk_budget.py). The activations of this many tokens of an 8B model take half a gigabyte."""

SHARE_OF_WAITING = 16
"""Waiting prompts may take this fraction (1/16) of the host's memory; four times as much if they share prefixes
(MAX_SHARED_FACTOR in engine/async_engine.py)."""

BYTES_A_WAITING_TOKEN = 64
"""Host memory per token of a waiting prompt: its id as an object of 32 bytes, and its address in three lists, of the
call, the request and the sequence. Measured: 60 (loadtest/log/robustness.md)."""


def default_num_seqs(device_bytes: int, weights_bytes: int, kv_token_bytes: int, cache: CacheConfig) -> int:
    """The default of max-num-seqs, by the device's memory, the weights that each step reads and the room for KV blocks.

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
    """The default of max-num-batched-tokens. device_bytes: of the device's memory."""
    if not is_gpu:
        return BUDGET_ON_CPU
    return BUDGET_WITH_MUCH_MEMORY if device_bytes >= MUCH_MEMORY_BYTES else USUAL_TOKENS


def default_waiting_tokens(host_bytes: int) -> int:
    """The default of max-waiting-tokens: what waiting prompts may take of the host's memory. The time that they wait is
    limited by max-waiting-seconds, since a token takes a microsecond on one device and a millisecond on another.

    host_bytes: of the host's memory, or of what the process's control group may use of it.
    """
    return max(1, host_bytes // SHARE_OF_WAITING // BYTES_A_WAITING_TOKEN)
