"""A LoRA adapter (Hu et al. 2021) as engine and scheduler know it: a small change of the weights that requests ask for.

Its weights are known to the executor alone, by the id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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


class Adapters(Protocol):
    """Which adapters are served, by name. Event-loop thread."""

    def served(self) -> Mapping[str, str]:
        """The names that may be asked for, each with its folder's name. Looks through a folder: for a list of them."""
        ...

    def folder_name(self, name: str) -> str | None:
        """The name of this adapter's folder; None if there is no such adapter."""
        ...

    async def get(self, name: str) -> Adapter | None:
        """The adapter of this name, read if need be; None if there is none. Raises AdapterError if it cannot be
        served."""
        ...

    async def load(self, name: str, path: str, *, in_place: bool) -> Adapter:
        """Serve the adapter in the folder `path`, below that of `lora-dir`, under this name. in_place: another one of
        this name is replaced; requests that have it keep it. Raises AdapterError, and then all is as before."""
        ...

    def unload(self, name: str) -> bool:
        """Serve it no more; requests that have it keep it. False if there was none. One that is found by its name in
        `lora-dir` is read again when it is asked for."""
        ...
