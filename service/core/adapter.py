"""A LoRA adapter (Hu et al. 2021) as engine and scheduler see it: a small change of the weights that requests ask for.

Only the executor knows its weights, by adapter id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, eq=False)
class Adapter:
    """Immutable, so it may cross threads. Compared by identity.

    name: as clients call it; another adapter may get the name later. adapter_id: >= 1, never reused in the process.
    num_blocks: KV blocks that hold its weights on the device, >= 1. digest: of its weights, in hexadecimal; it keeps
    prefixes that were computed with different weights apart.
    """

    name: str
    adapter_id: int
    num_blocks: int
    digest: str


class AdapterLoad(NamedTuple):
    """Copy an adapter's weights from the host to the device.

    slot: the number, >= 1, by which sequences name the adapter from this iteration on; overwrites what was there.
    block_ids: the adapter's `num_blocks` KV blocks, in the order of its weights. They were free, and belong to the
    adapter as long as it has the slot.
    """

    slot: int
    adapter_id: int
    block_ids: tuple[int, ...]


class Adapters(Protocol):
    """The adapters that are served, by name. Event-loop thread."""

    def served(self) -> Mapping[str, str]:
        """All names that requests may use, each with the name of its folder. Scans a folder: meant for listings."""
        ...

    def folder_name(self, name: str) -> str | None:
        """Name of the folder of this adapter; None if there is no such adapter."""
        ...

    async def get(self, name: str) -> Adapter | None:
        """The adapter of this name, read from disk if necessary; None if there is none. Raises AdapterError if it
        cannot be served."""
        ...

    async def load(self, name: str, path: str, *, in_place: bool) -> Adapter:
        """Serve the adapter in folder `path`, which must be below `lora-dir`, under this name. in_place: replace an
        adapter of this name; live requests keep the one that they have. If it raises AdapterError, nothing changed."""
        ...

    def unload(self, name: str) -> bool:
        """Stop serving it; live requests keep it. False if there was none. An adapter that `lora-dir` has under this
        name is read again when a request asks for it."""
        ...
