"""What must be the same on all hosts of a model: named facts, which the head compares."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from service.core.version import distribution_version
from service.distributed.rank_task import RankTask

_SAMPLES = 16
_SAMPLE_BYTES = 4096
_WEIGHTS = "*.safetensors", "*.bin", "*.pt", "*.pth"


def facts_of(task: RankTask) -> dict[str, str]:
    """The settings that all hosts must share and that ranks do not agree on while they load.

    Values are for people. Files are digests: of the bytes of config.json, and of each weight file's name, size and
    samples of 4 KiB.
    """
    source, parallel = task.source, task.parallel
    facts: Mapping[str, object] = {
        "version": distribution_version(),
        "version of torch": _torch_version(),
        "nnodes": parallel.num_nodes,
        "pipeline-parallel-size": parallel.num_stages,
        "tensor-parallel-size": parallel.tensor_size,
        "config.json": _digest(_bytes_of(task.folder / "config.json")),
        "model (weights)": "none" if source.load_format == "dummy" else _digest(_samples(task.folder)),
        "load-format": source.load_format,
        "model-impl": source.implementation,
        "dtype": source.dtype,
        "quantization": source.quantization,
        "deterministic": source.deterministic,
        "device": source.device,
        "max-model-len": source.max_model_len,
        "seed": source.seed,
        "block-size": task.cache.block_size,
        "kv-cache-dtype": task.cache.dtype,
        "swap-compression": task.cache.swap_compression,
        "swap-space (0 with preemption recompute)": task.cache.swap_bytes,
        "max-loras": None if task.lora is None else task.lora.num_slots,
        "max-lora-rank": None if task.lora is None else task.lora.max_rank,
        "enable-finetuning": task.lora is not None and task.lora.trains,
    }
    return {name: str(value) for name, value in facts.items()}


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """How another host's facts differ from the head's, for people; empty if they do not."""
    return "; ".join(
        f"{name} is {theirs.get(name, 'missing')}, but {ours[name]} on the head"
        for name in ours
        if theirs.get(name) != ours[name]
    )


def _torch_version() -> str:
    """Without importing torch."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


def _digest(parts: Iterator[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:16]


def _bytes_of(file: Path) -> Iterator[bytes]:
    if file.is_file():
        yield file.read_bytes()


def _samples(folder: Path) -> Iterator[bytes]:
    """Weights that were trained further have the same sizes, so some of their bytes are compared, too."""
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        size = path.stat().st_size
        yield f"{path.name} {size}".encode()
        with path.open("rb") as file:
            for place in range(_SAMPLES + 1):
                file.seek(max(0, size - _SAMPLE_BYTES) * place // _SAMPLES)
                yield file.read(_SAMPLE_BYTES)
