"""How much space all stored files may take."""

from __future__ import annotations

from service.errors import StorageFull

MAX_FILES = 100_000
"""However small files are, each has a row, a name and a block on the disk."""


class StorageBudget:
    """Event loop. Files that are still being written count in bytes, but not in their number."""

    def __init__(self, max_bytes: int, max_files: int = MAX_FILES) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_files = 0
        self._max_files = max_files

    def check_room(self, num_bytes: int) -> None:
        """StorageFull if `num_bytes` more do not fit."""
        if self.num_bytes + num_bytes > self.max_bytes:
            raise StorageFull(
                f"The server stores {self.num_bytes} bytes of {self.max_bytes} (--max-storage-gib); {num_bytes} more do"
                " not fit. Delete files."
            )

    def check_files(self) -> None:
        """StorageFull if there may be no more files."""
        if self.num_files >= self._max_files:
            raise StorageFull(f"The server stores {self.num_files} files, which is the limit. Delete some.")

    def take(self, num_bytes: int) -> None:
        """As `check_room`, and takes them."""
        self.check_room(num_bytes)
        self.num_bytes += num_bytes

    def note(self, num_bytes: int) -> None:
        """Counts bytes of an earlier run of the server."""
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        assert self.num_bytes >= 0, "more was given back than was taken"
