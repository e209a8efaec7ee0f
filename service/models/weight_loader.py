"""Checkpoint files -> parameters, by exact names. Whatever is missing, left over or of another shape is reported by
name.

The names and shapes of all files are checked before any weight is read. Then each file is read from beginning to end,
several files at a time, each tensor directly into its place in the (merged) parameter. Weights of bitsandbytes are
dequantized on the destination's device, where those of the files that are being read take memory meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from service.errors import ModelLoadError
from service.layers.shard import Shard
from service.layers.weight_storage import Destination
from service.models.bitsandbytes_weights import DequantizedTensor, plain_tensors
from service.models.causal_lm import CausalLM
from service.models.checkpoint_file import OpenFiles, StoredTensor, read_header, read_tensors
from service.models.checkpoint_files import checkpoint_files, some_of
from service.models.config_fields import read_json
from service.models.quantization import is_bitsandbytes
from service.models.text_part import text_fields, text_name

OnProgress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all), from any thread, one call at a time."""

_FLOAT_DTYPES = frozenset({"BF16", "F16", "F32"})
_STORED_AS = {torch.uint8: "U8", torch.int8: "I8", torch.int32: "I32", torch.float8_e4m3fn: "F8_E4M3"}
"""Stored dtypes of what is read unchanged; other tensors may be any float."""
_NUM_THREADS = 4  # files read at a time


def load_weights(
    model: CausalLM,
    folder: Path,
    on_progress: OnProgress | None = None,
    *,
    torch_format: bool = False,
    unread: AbstractSet[str] = frozenset(),
) -> None:
    """Fill a materialized model from a folder's checkpoint, converting to the parameters' dtype.

    torch_format: read torch's own files instead of safetensors; without it nothing is ever unpickled. unread: names
    that the checkpoint may hold, besides those that the model ignores. Raises ModelLoadError naming files or weights;
    the model is then unusable.
    """
    written = {entry.name: entry for file in checkpoint_files(folder, torch_format) for entry in read_header(file)}
    fields = _config_fields(folder)
    plain = plain_tensors(written, OpenFiles().read) if is_bitsandbytes(fields) else written
    stored = plain if text_fields(fields) is None else _of_text(plain)
    wanted, shards = model.checkpoint_places(stored), model.stored_shards(stored)
    _check(wanted, shards, stored, lambda name: name in unread or model.ignores(name))
    progress = _Progress(sum(destination.nbytes for destination in wanted.values()), on_progress)
    by_file: dict[Path, dict[str, _Part]] = {}
    for name, destination in wanted.items():
        if destination.shape.numel():
            there = _Part(stored[name], destination, shards.get(name))
            by_file.setdefault(stored[name].file, {})[stored[name].name] = there
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="weights") as pool:
        for reading in [pool.submit(_read_file, file, parts, progress) for file, parts in by_file.items()]:
            reading.result()


def non_finite_weights(folder: Path) -> str:
    """Names of the checkpoint's tensors that hold NaN or infinity, the first few; empty if there are none. Reads all
    weights."""
    return some_of(
        [
            name
            for file in checkpoint_files(folder)
            for name, tensor in read_tensors(file, {entry.name: None for entry in read_header(file)})
            if not tensor.isfinite().all()
        ]
    )


def _config_fields(folder: Path) -> Mapping[str, object]:
    config = folder / "config.json"
    return read_json(config) if config.is_file() else {}


def _of_text(written: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The text part's tensors, by the names that they would have in its own checkpoint."""
    names = {name: text_name(name) for name in written}
    return {own: written[name] for name, own in names.items() if own is not None}


def _check(
    wanted: Mapping[str, Destination],
    shards: Mapping[str, Shard],
    stored: Mapping[str, StoredTensor],
    ignores: Callable[[str], bool],
) -> None:
    shapes = {
        name: shards[name].whole_shape(there.shape) if name in shards else tuple(there.shape)
        for name, there in wanted.items()
    }
    missing = [name for name in wanted if name not in stored]
    extra = [name for name in stored if name not in wanted and not ignores(name)]
    known = [(name, stored[name], shape) for name, shape in shapes.items() if name in stored]
    misshapen = [f"{name} {got.shape} instead of {shape}" for name, got, shape in known if not _fits(got.shape, shape)]
    typed = [(name, got.dtype, _STORED_AS.get(wanted[name].dtype)) for name, got, _ in known]
    mistyped = [f"{name} {got}" for name, got, fixed in typed if fixed is None and got not in _FLOAT_DTYPES]
    of_another = [f"{name} {got} instead of {fixed}" for name, got, fixed in typed if fixed not in (None, got)]
    faults = [
        f"{what}: {some_of(names)}"
        for what, names in (
            ("missing", missing),
            ("not part of this architecture", extra),
            ("of another shape", misshapen),
            ("neither bf16, fp16 nor fp32", mistyped),
            ("of another type", of_another),
        )
        if names
    ]
    if faults:
        raise ModelLoadError("weights do not fit the model. " + "; ".join(faults))


def _fits(stored: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """A single number may be stored in any shape."""
    return stored == wanted or (math.prod(stored) == math.prod(wanted) == 1)


class _Progress:
    """Counts bytes over threads."""

    def __init__(self, total_bytes: int, on_progress: OnProgress | None) -> None:
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._total_bytes = total_bytes
        self._on_progress = on_progress

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._read_bytes += num_bytes
            if self._on_progress is not None:
                self._on_progress(self._read_bytes, self._total_bytes)


class _Part(NamedTuple):
    """Where a stored tensor goes; shard: the part of it that this rank has, None for all."""

    stored: StoredTensor
    destination: Destination
    shard: Shard | None

    @property
    def read_shard(self) -> Shard | None:
        """Which part is read: all of a quantized tensor, whose blocks go over the ends of rows."""
        return None if isinstance(self.stored, DequantizedTensor) else self.shard

    def plain(self, read: Tensor, others: OpenFiles) -> Tensor:
        """What the destination takes. read: what `read_tensors` gave for it. others: to read what belongs to it."""
        if not isinstance(self.stored, DequantizedTensor):
            return read
        whole = self.stored.dequantized(read, others.read, self.destination.device)
        return whole if self.shard is None else self.shard.of(whole)


def _read_file(file: Path, parts: Mapping[str, _Part], progress: _Progress) -> None:
    others = OpenFiles()
    for name, stored in read_tensors(file, {name: part.read_shard for name, part in parts.items()}):
        destination = parts[name].destination
        tensor = parts[name].plain(stored, others)
        destination.copy_(tensor.view(destination.shape) if tensor.numel() == 1 else tensor)
        progress.add(destination.nbytes)
