"""Weights that bitsandbytes has quantized, as they lie in a checkpoint, and their dequantization.

A linear has a weight [N, K]. Blocks are of its elements in row-major order and may go over the end of a row.

    4 bits  weight             [N K / 2, 1] uint8, or the same bytes under another dtype: two elements a byte, the first
                               one in the high bits
            weight.absmax      [blocks]: the largest element of each block; uint8 if it is quantized, too ("nested")
            weight.quant_map   [16]: the value of each element. Unused: bitsandbytes takes the table of the type, nf4 or
                               fp4, whatever is written here
            weight.quant_state.bitsandbytes__TYPE
                               JSON as uint8: shape [N, K], blocksize, dtype of the weight before quantization
            weight.nested_absmax [blocks of blocks], weight.nested_quant_map [256]: of a nested absmax. The JSON then
                               has nested_blocksize and nested_offset
    8 bits  weight             [N, K] int8
            SCB                [N]: the largest element of each row
            weight_format      0: row-major. Older versions have other numbers for layouts of one kind of GPU

    absmax = nested_quant_map[absmax] * nested_absmax + nested_offset
    weight = table[element] * absmax                       4 bits (QLoRA: Dettmers et al. 2023)
    weight = element * SCB / 127                           8 bits (LLM.int8(): Dettmers et al. 2022)

All in fp32. With 4 bits the product is rounded to the JSON's dtype, as bitsandbytes does; with 8 bits it stays in fp32.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from service.errors import ModelLoadError
from service.models.checkpoint_file import StoredTensor

Read = Callable[[StoredTensor], Tensor]
"""A stored tensor, all of it, on the CPU."""

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of the normal distribution (QLoRA, appendix E)."""
_FP4_TIMES_12 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
"""Without a sign: of two bits of exponent and one of mantissa."""
_TABLES = MappingProxyType({"nf4": _NF4, "fp4": tuple(sign * each / 12 for sign in (1, -1) for each in _FP4_TIMES_12)})
_STATE = re.compile(r"(.+)\.quant_state\.bitsandbytes__(\w+)")
_MOST_STATE_BYTES = 4096
_BLOCK_SIZES = frozenset(2**power for power in range(5, 13))
"""The only ones that bitsandbytes dequantizes."""
_TABLE_ERROR = 2e-3
"""By how much a stored table may differ from the type's: it may have been rounded to bf16."""
_DTYPES = MappingProxyType(
    {"float32": ("F32", torch.float32), "float16": ("F16", torch.float16), "bfloat16": ("BF16", torch.bfloat16)}
)
_FLOATS = frozenset(stored for stored, _ in _DTYPES.values())
_STORAGE_BYTES = MappingProxyType({"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4, "F64": 8})
_PART = 1 << 20
"""Elements that are dequantized at a time, a multiple of every block size; each takes 12 bytes meanwhile. By 2^24 at a
time a CPU core takes three times as long, since they leave its caches."""
_OF_127 = 7.874015718698502e-3


@dataclass(frozen=True, slots=True)
class DequantizedTensor(StoredTensor, ABC):
    """A plain tensor, to be computed from stored ones. file, name: of the stored elements. shape, dtype: its own."""

    @abstractmethod
    def dequantized(self, elements: Tensor, read: Read, device: torch.device) -> Tensor:
        """Computes the tensor on the device. elements: what is stored under its file and name."""


def plain_tensors(written: Mapping[str, StoredTensor], read: Read) -> dict[str, StoredTensor]:
    """The tensors of the checkpoint as if it were unquantized, by name: of each quantized linear its weight alone, all
    others as they are. Of each weight it reads the JSON and the table. Raises ModelLoadError naming a tensor that is
    missing or does not fit the others."""
    plain = dict(written)
    for name in written:
        state = _STATE.fullmatch(name)
        if state is not None:
            weight, kind = state.groups()
            plain[weight] = _of_4_bits(plain, weight, kind, plain.pop(name), read)
        elif name.endswith(".SCB"):
            weight = f"{name.removesuffix('.SCB')}.weight"
            plain[weight] = _of_8_bits(plain, weight, plain.pop(name), read)
    return plain


@dataclass(frozen=True, slots=True)
class _Scales:
    """The absmax of each block, as it is stored. nested: how it is quantized; None: it is not."""

    stored: StoredTensor
    nested: _Nested | None

    def read(self, read: Read, device: torch.device) -> Tensor:
        """[blocks] fp32."""
        scales = read(self.stored).to(device)
        if self.nested is None:
            return scales.float()
        table, of_blocks = (read(part).to(device).float() for part in (self.nested.table, self.nested.of_blocks))
        return _times(table[scales.long()], of_blocks, self.nested.block_size) + self.nested.offset


class _Nested(NamedTuple):
    """table: nested_quant_map. of_blocks: nested_absmax."""

    table: StoredTensor
    of_blocks: StoredTensor
    block_size: int
    offset: float


@dataclass(frozen=True, slots=True)
class _Of4Bits(DequantizedTensor):
    """kind: nf4 or fp4. rounded_to: `dtype`, as torch has it."""

    kind: str
    rounded_to: torch.dtype
    block_size: int
    scales: _Scales

    def dequantized(self, elements: Tensor, read: Read, device: torch.device) -> Tensor:
        packed = elements.reshape(-1).view(torch.uint8).to(device)
        scales = self.scales.read(read, device)
        table = torch.tensor(_TABLES[self.kind], device=device)
        pairs = torch.stack((table.repeat_interleave(16), table.repeat(16)), 1)
        plain = torch.empty(math.prod(self.shape), dtype=self.rounded_to, device=device)
        for first, part in enumerate(plain.split(_PART)):
            start = first * _PART
            bytes_of_part = packed[start // 2 : (start + len(part) + 1) // 2]
            values = pairs.index_select(0, bytes_of_part.int()).flatten()[: len(part)]
            part.copy_(_times(values, scales[start // self.block_size :], self.block_size))
        return plain.view(self.shape)


@dataclass(frozen=True, slots=True)
class _Of8Bits(DequantizedTensor):
    largest: StoredTensor

    def dequantized(self, elements: Tensor, read: Read, device: torch.device) -> Tensor:
        largest = read(self.largest).to(device).float()
        return elements.to(device).float().mul_(largest[:, None]).mul_(_OF_127)


def _times(values: Tensor, scales: Tensor, block_size: int) -> Tensor:
    """values [n], each times the scale of its block. scales: [blocks or more]."""
    num_blocks = -(-len(values) // block_size)
    padded = F.pad(values, (0, num_blocks * block_size - len(values))).view(num_blocks, block_size)
    return (padded * scales[:num_blocks, None]).flatten()[: len(values)]


def _of_4_bits(
    plain: dict[str, StoredTensor], weight: str, kind: str, written_state: StoredTensor, read: Read
) -> _Of4Bits:
    """Removes the other tensors of the weight from `plain`."""
    elements = _elements_of(plain, weight, written_state.name)
    if kind not in _TABLES:
        known = ", ".join(_TABLES)
        raise ModelLoadError(f"{written_state.name}: elements of type {kind} are not supported, only {known}")
    state = _State(written_state, read)
    shape, block_size, dtype = state.shape(), state.block_size("blocksize"), state.dtype()
    num_bytes, num_blocks = -(-math.prod(shape) // 2), -(-math.prod(shape) // block_size)
    width = _STORAGE_BYTES.get(elements.dtype)
    if width is None or elements.shape != (num_bytes // width, 1) or num_bytes % width:
        raise ModelLoadError(
            f"{weight}: {elements.dtype} {elements.shape} does not hold the {num_bytes} bytes of 4-bit elements of"
            f" shape {list(shape)}, which {written_state.name} names"
        )
    nested = None
    if state.is_nested:
        size = state.block_size("nested_blocksize")
        table = _taken(plain, f"{weight}.nested_quant_map", (256,), _FLOATS)
        of_blocks = _taken(plain, f"{weight}.nested_absmax", (-(-num_blocks // size),), _FLOATS)
        nested = _Nested(table, of_blocks, size, state.number("nested_offset"))
    stored = _taken(plain, f"{weight}.absmax", (num_blocks,), _FLOATS if nested is None else frozenset({"U8"}))
    table = _taken(plain, f"{weight}.quant_map", (16,), _FLOATS)
    if not torch.allclose(read(table).float(), torch.tensor(_TABLES[kind]), rtol=0, atol=_TABLE_ERROR):
        raise ModelLoadError(f"{table.name}: is not the table of {kind} that bitsandbytes uses")
    stored_dtype, rounded_to = dtype
    scales = _Scales(stored, nested)
    return _Of4Bits(elements.file, elements.name, shape, stored_dtype, kind, rounded_to, block_size, scales)


def _of_8_bits(plain: dict[str, StoredTensor], weight: str, largest: StoredTensor, read: Read) -> _Of8Bits:
    """As `_of_4_bits`."""
    elements = _elements_of(plain, weight, largest.name)
    if elements.dtype != "I8" or len(elements.shape) != 2:
        raise ModelLoadError(
            f"{weight}: {elements.dtype} {elements.shape} is not an int8 matrix, which {largest.name} is for"
        )
    _check(largest, elements.shape[:1], _FLOATS)
    form = plain.pop(f"{weight}_format", None)
    if form is not None:
        _check(form, (), frozenset({"U8"}))
        if read(form).item() != 0:
            raise ModelLoadError(
                f"{form.name}: layout {read(form).item()} is not supported, only 0 (row-major); quantize the"
                " unquantized checkpoint again with a newer bitsandbytes"
            )
    return _Of8Bits(elements.file, elements.name, elements.shape, "F32", largest)


class _State:
    """The JSON of a weight of 4 bits. Every method raises ModelLoadError naming its tensor."""

    def __init__(self, stored: StoredTensor, read: Read) -> None:
        self._name = stored.name
        if stored.dtype != "U8" or len(stored.shape) != 1 or stored.shape[0] > _MOST_STATE_BYTES:
            raise ModelLoadError(
                f"{stored.name}: {stored.dtype} {stored.shape} is not JSON of at most {_MOST_STATE_BYTES} bytes"
            )
        try:
            fields = json.loads(bytes(read(stored).tolist()))
        except (ValueError, RecursionError) as fault:
            raise ModelLoadError(f"{stored.name}: is not JSON: {fault}") from None
        if not isinstance(fields, dict):
            raise ModelLoadError(f"{stored.name}: is not a JSON object")
        self._fields: Mapping[str, object] = fields

    @property
    def is_nested(self) -> bool:
        return "nested_blocksize" in self._fields

    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        match self._fields.get("shape"):
            case [int(rows), int(size)] if rows > 0 and size > 0:
                return rows, size
            case other:
                raise self._fault("shape", other, "the shape of a matrix")

    def block_size(self, name: str) -> int:
        value = self._fields.get(name)
        if not isinstance(value, int) or value not in _BLOCK_SIZES:
            raise self._fault(name, value, "a power of two from 32 to 4096")
        return value

    def dtype(self) -> tuple[str, torch.dtype]:
        """Of the dequantized weight, as safetensors and as torch name it."""
        value = self._fields.get("dtype")
        if not isinstance(value, str) or value not in _DTYPES:
            raise self._fault("dtype", value, f"one of {', '.join(_DTYPES)}")
        if self.is_nested and self._fields.get("nested_dtype", "float32") != "float32":
            raise self._fault("nested_dtype", self._fields["nested_dtype"], "float32")
        return _DTYPES[value]

    def number(self, name: str) -> float:
        value = self._fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < torch.finfo().max:
            raise self._fault(name, value, "a number")
        return float(value)

    def _fault(self, name: str, value: object, wanted: str) -> ModelLoadError:
        return ModelLoadError(f"{self._name}: {name} {repr(value)[:80]} is not {wanted}")


def _elements_of(plain: Mapping[str, StoredTensor], weight: str, beside: str) -> StoredTensor:
    elements = plain.get(weight)
    if elements is None or isinstance(elements, DequantizedTensor):
        fault = "is missing, although" if elements is None else "is quantized in a second way, since"
        raise ModelLoadError(f"{weight}: {fault} {beside} is there")
    return elements


def _taken(plain: dict[str, StoredTensor], name: str, shape: tuple[int, ...], dtypes: frozenset[str]) -> StoredTensor:
    stored = plain.pop(name, None)
    if stored is None:
        raise ModelLoadError(f"{name}: is missing")
    _check(stored, shape, dtypes)
    return stored


def _check(stored: StoredTensor, shape: tuple[int, ...], dtypes: frozenset[str]) -> None:
    if stored.shape != shape or stored.dtype not in dtypes:
        wanted = "/".join(sorted(dtypes))
        raise ModelLoadError(f"{stored.name}: {stored.dtype} {stored.shape} instead of {wanted} {shape}")
