"""Reads safetensors files tensor by tensor into memory of its own, and writes them.

The library is not used, because adapters are read while requests run. Its `safe_open` maps the file, and if a mapped
file is truncated, reading it ends the process (SIGBUS). Its `deserialize` holds the interpreter lock while it copies:
22 to 117 ms for the 84 MB of rank 16 over an 8B model (loadtest/log/cpu.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import torch
from torch import Tensor

from service.errors import AdapterError

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
)
"""The dtypes that are read, by their names in the format."""

_NAMES: Mapping[torch.dtype, str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
_METADATA = "__metadata__"
_ALIGNMENT = 8  # of the first tensor; required by the format
_LENGTH_BYTES = 8  # the file starts with the header's length, little-endian
_LFS_POINTER = b"version "
"""How a Git LFS pointer file begins. Read as a header length it would be absurdly large, so there is no ambiguity."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the header describes it. dtype: as the format spells it. begin, end: bytes after the header's end."""

    shape: tuple[int, ...]
    dtype: str
    begin: int
    end: int


class TensorFile:
    """An open file, made by `opened_tensors`. metadata: the header's `__metadata__`."""

    def __init__(
        self,
        name: str,
        file: BufferedReader,
        data_start: int,
        tensors: Mapping[str, StoredTensor],
        metadata: Mapping[str, object],
    ) -> None:
        self.tensors = tensors
        self.metadata = metadata
        self._name = name
        self._file = file
        self._data_start = data_start

    def read(self, name: str) -> Tensor:
        """Read a tensor, whose dtype must be in DTYPES. Raises AdapterError if its bytes are missing."""
        stored = self.tensors[name]
        dtype, num_bytes = DTYPES[stored.dtype], stored.end - stored.begin
        if num_bytes != dtype.itemsize * math.prod(stored.shape):
            raise AdapterError(f"{self._name}: {name} has {num_bytes} bytes, which does not match its shape")
        data = bytearray(num_bytes)
        try:
            self._file.seek(self._data_start + stored.begin)
            num_read = self._file.readinto(data)
        except OSError as fault:
            raise AdapterError(f"{self._name}: cannot be read: {fault.strerror}") from fault
        if num_read != num_bytes:
            raise AdapterError(f"{self._name}: was cut short while it was read")
        return torch.frombuffer(data, dtype=dtype).view(stored.shape)


@contextmanager
def opened_tensors(file: Path, max_header_bytes: int, max_data_bytes: int) -> Iterator[TensorFile]:
    """Open the file, and read and check its header only. Raises AdapterError naming the file."""
    try:
        opened = file.open("rb")
    except OSError as fault:
        raise AdapterError(f"{file.name}: cannot be read: {fault.strerror}") from fault
    with opened:
        size = opened.seek(0, 2)
        if size > max_header_bytes + max_data_bytes:
            most = max_header_bytes + max_data_bytes
            raise AdapterError(f"{file.name}: has {size} bytes; adapters of this model have at most {most}")
        header = _read_header(file.name, opened, max_header_bytes)
        data_start = opened.tell()
        metadata = header.pop(_METADATA, None)
        tensors = _described(file.name, header)
        _check_extents(file.name, tensors, size - data_start)
        yield TensorFile(file.name, opened, data_start, tensors, metadata if isinstance(metadata, dict) else {})


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a whole file. tensors: on the host, with dtypes in DTYPES. Writes data without the interpreter lock."""
    header: dict[str, object] = {_METADATA: dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for tensor in tensors.values():
        file.write(tensor_bytes(tensor))


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A host tensor's bytes as stored; not a copy if the tensor is contiguous."""
    return memoryview(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)


def _read_header(name: str, file: BufferedReader, max_bytes: int) -> dict[str, object]:
    file.seek(0)
    length = file.read(_LENGTH_BYTES)
    if length == _LFS_POINTER:
        raise AdapterError(f"{name}: only points to a file in Git LFS, which `git lfs pull` fetches")
    num_bytes = int.from_bytes(length, "little")
    if len(length) < _LENGTH_BYTES or not 0 < num_bytes <= max_bytes:
        raise AdapterError(f"{name}: is not a safetensors file, or has a header of more than {max_bytes} bytes")
    text = file.read(num_bytes)
    if len(text) < num_bytes:
        raise AdapterError(f"{name}: is cut short: it ends within its header")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise AdapterError(f"{name}: is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise AdapterError(f"{name}: is not a safetensors file: its header is not a JSON object")
    return header


def _described(name: str, header: Mapping[str, object]) -> Mapping[str, StoredTensor]:
    try:
        return {tensor: _stored(description) for tensor, description in header.items()}
    except (KeyError, TypeError, ValueError):
        raise AdapterError(f"{name}: is not a safetensors file: its header does not describe tensors") from None


def _stored(description: object) -> StoredTensor:
    if not isinstance(description, dict):
        raise TypeError
    dtype, shape, (begin, end) = description["dtype"], description["shape"], description["data_offsets"]
    if not isinstance(dtype, str) or not all(type(size) is int and size >= 0 for size in (*shape, begin, end)):
        raise TypeError
    return StoredTensor(tuple(shape), dtype, begin, end)


def _check_extents(name: str, tensors: Mapping[str, StoredTensor], num_bytes: int) -> None:
    """Raise AdapterError unless the tensors fill the file after the header, without gaps or overlaps."""
    expected = 0
    for stored in sorted(tensors.values(), key=lambda stored: (stored.begin, stored.end)):
        if stored.begin != expected or stored.end < stored.begin:
            raise AdapterError(f"{name}: is damaged: its tensors overlap or leave gaps")
        expected = stored.end
    if num_bytes < expected:
        raise AdapterError(f"{name}: is cut short: {num_bytes} bytes of weights instead of {expected}")
    if num_bytes > expected:
        raise AdapterError(f"{name}: is damaged: {num_bytes} bytes of weights instead of {expected}")
