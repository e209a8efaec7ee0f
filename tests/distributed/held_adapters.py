"""A rank that holds adapters, and computes with none."""

from __future__ import annotations

from pathlib import Path


class Held:
    """Bytes by id. A file of "bad" cannot be taken."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}

    def take(self, adapter_id: int, file: Path) -> None:
        data = file.read_bytes()
        if data == b"bad":
            raise MemoryError("no room")
        self.files[adapter_id] = data

    def drop(self, adapter_id: int) -> None:
        self.files.pop(adapter_id, None)

    @property
    def num_taken(self) -> int:
        return len(self.files)
