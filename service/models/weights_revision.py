"""A name for a folder's weights that changes when they do."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLE_BYTES = 1 << 20
_NUM_SAMPLES = 8


def weights_revision(folder: Path) -> str:
    """12 hex digits of a hash over config.json and every weight file's name, size and samples.

    At most 8 MiB of each file are read, including its header and its end, so it takes hardly any time. Two files that
    differ only between the samples get the same name.
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
