"""Which weights these are: a name for them that changes when they do."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLE_BYTES = 1 << 20
_NUM_SAMPLES = 8


def weights_revision(folder: Path) -> str:
    """12 hex digits made of config.json and of every weight file's name, size and samples.

    Eight MiB of a file are read, its header and its end among them, so that it takes no time to speak of; two files
    that differ only between the samples look alike.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = file.stat().st_size
        digest.update(f"\n{file.name} {size}\n".encode())
        last = max(0, size - _SAMPLE_BYTES)
        with file.open("rb") as weights:
            for start in sorted({last * i // (_NUM_SAMPLES - 1) for i in range(_NUM_SAMPLES)}):
                weights.seek(start)
                digest.update(weights.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]
