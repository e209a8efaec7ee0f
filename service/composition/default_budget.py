"""The default of max-num-batched-tokens, by the device."""

from __future__ import annotations

from service.composition.default_num_seqs import MUCH_MEMORY_BYTES
from service.scheduler.chunk_budget import USUAL_TOKENS

ON_CPU = 512
"""What a CPU computes in some tens of milliseconds to a second, so that prompts do not stall decodes."""

WITH_MUCH_MEMORY = 2 * USUAL_TOKENS
"""For deep queues (chunk_budget.py); the activations of so many tokens of an 8B model take half a gigabyte."""


def default_budget(device_bytes: int, *, is_gpu: bool) -> int:
    """Tokens. device_bytes: of the device's memory."""
    if not is_gpu:
        return ON_CPU
    return WITH_MUCH_MEMORY if device_bytes >= MUCH_MEMORY_BYTES else USUAL_TOKENS
