"""Reads the lines of a batch's results while they are being written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

_MOST_BYTES = 1024 * 1024


class WrittenLines:
    """Reads several files that only grow, each line once. One thread at a time.

    A file may be moved once it is open. A line cut off by a full disk is written again with the same contents, so what
    was read of it stays valid.
    """

    def __init__(self, num_files: int) -> None:
        self._files: list[BinaryIO | None] = [None] * num_files

    def read(self, paths: Sequence[Path | None]) -> list[bytes]:
        """Complete lines that were not read before, without newlines: about 1 MiB, or a single longer line. Empty: all
        that is there was read. paths: where each file is now, or will be."""
        lines, num_bytes = list[bytes](), 0
        for number, path in enumerate(paths):
            file = self._files[number] = self._files[number] or _opened(path)
            while file is not None and num_bytes < _MOST_BYTES:
                begin = file.tell()
                line = file.readline()
                if not line.endswith(b"\n"):
                    file.seek(begin)
                    break
                lines.append(line[:-1])
                num_bytes += len(line)
        return lines

    def close(self) -> None:
        for file in self._files:
            if file is not None:
                file.close()


def _opened(path: Path | None) -> BinaryIO | None:
    if path is None:
        return None
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
