"""One file of a checkpoint: safetensors, or torch's own format, the only one that some early models have.

The latter is a pickle. It is read with torch's restricted unpickler, which makes only tensors and plain containers, and
only if a setting asks for it (`weight_loader.py`): that unpickler has been escaped from before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from service.errors import ModelLoadError
from service.layers.shard import Shard
from service.models.checkpoint_files import TORCH_SUFFIX, check_fetched

_DTYPE_NAMES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.int8: "I8",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file describes it. name: in that file. dtype: as safetensors spells it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def read_header(file: Path) -> Iterator[StoredTensor]:
    """The tensors in the file; no weight of a safetensors file is read. Raises ModelLoadError naming the file."""
    if file.suffix == TORCH_SUFFIX:
        for name, tensor in _torch_tensors(file).items():
            yield StoredTensor(file, name, tuple(tensor.shape), _DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)))
        return
    with _opened(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            part = tensors.get_slice(name)
            yield StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype())


def read_tensors(file: Path, parts: Mapping[str, Shard | None]) -> Iterator[tuple[str, Tensor]]:
    """The tensors with these names, or these parts of them, in the order in which they lie in the file. Of safetensors
    nothing else is read; a part of each row is copied row by row from the page cache."""
    if file.suffix == TORCH_SUFFIX:
        for name, tensor in _torch_tensors(file).items():
            if name in parts:
                yield name, _part_of(tensor, parts[name])
        return
    with _opened(file) as tensors:
        for name in tensors.offset_keys():
            if name in parts:
                shard = parts[name]
                yield name, tensors.get_tensor(name) if shard is None else _read_part(tensors, name, shard)


class OpenFiles:
    """Reads single tensors, out of files that stay open as long as this lives. For one thread."""

    def __init__(self) -> None:
        self._files: dict[Path, Callable[[str], Tensor]] = {}

    def read(self, tensor: StoredTensor) -> Tensor:
        """All of it, on the CPU. Raises ModelLoadError naming the file."""
        file = tensor.file
        if file not in self._files:
            is_torch = file.suffix == TORCH_SUFFIX
            self._files[file] = _torch_tensors(file).__getitem__ if is_torch else _opened(file).get_tensor
        return self._files[file](tensor.name)


def _part_of(tensor: Tensor, shard: Shard | None) -> Tensor:
    return tensor if shard is None else shard.of(tensor)


def _read_part(tensors: safe_open, name: str, shard: Shard) -> Tensor:
    stored = tensors.get_slice(name)  # type: ignore[no-untyped-call]  # of safetensors
    before = (slice(None),) * shard.dim
    pieces = [stored[(*before, slice(each.start, each.stop))] for each in shard.ranges]
    return torch.cat(pieces, shard.dim) if len(pieces) != 1 else pieces[0]


def _opened(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (OSError, SafetensorError) as fault:
        check_fetched(file)
        raise ModelLoadError(f"{file.name}: is not a readable safetensors file: {fault}") from fault


def _torch_tensors(file: Path) -> Mapping[str, Tensor]:
    try:
        try:
            tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files from before torch 1.6 cannot be mapped
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as fault:  # a broken pickle may raise almost anything
        check_fetched(file)
        raise ModelLoadError(f"{file.name}: is not a readable torch checkpoint: {fault}") from fault
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ModelLoadError(f"{file.name}: is not a map of names to tensors")
    return tensors
