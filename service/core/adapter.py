"""A LoRA adapter (Hu et al. 2021) as engine and scheduler know it: a small change of the weights that requests ask for.

Its weights are known to the executor alone, by the id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, eq=False)
class Adapter:
    """Immutable, so it may cross threads. Two are the same only if they are one object.

    name: as clients call it; another adapter may get the name later. adapter_id: >= 1, of no other adapter in the
    process, ever. num_blocks: KV blocks that hold its weights on the device, >= 1. digest: of its weights, in
    hexadecimal; prefixes that were computed with different weights are never shared.
    """

    name: str
    adapter_id: int
    num_blocks: int
    digest: str


class AdapterLoad(NamedTuple):
    """Copy an adapter's weights from the host to the device.

    slot: by which sequences name it from this iteration on, >= 1; what was there is forgotten. block_ids: the KV blocks
    that take it, as many as it has, in the order of its weights. They were free, and are its own as long as it has the
    slot.
    """

    slot: int
    adapter_id: int
    block_ids: tuple[int, ...]
