"""What int4 weights are read into, in the layouts of three formats, and how they become one (kernels/quantized_weight).

For a part with N output features, K input features and G groups, in 32-bit words that hold 8 elements, the first one in
the lowest bits; AWQ's words hold them in the order 0, 2, 4, 6, 1, 3, 5, 7:

    AWQ                 qweight [K, N / 8]       qzeros [G, N / 8]              scales [G, N]
    GPTQ                qweight [K / 8, N]       qzeros [G, N / 8], one less    scales [G, N]
    compressed-tensors  weight_packed [N, K / 8] weight_zero_point [N / 8, G]   weight_scale [N, G]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.quantized_weight import LEAST_CHUNK, QuantizedWeight, chunk_of, pack_int4
from service.layers.shard import Shard
from service.layers.weight_storage import Destination, WeightStorage
from service.models.quantization import A_WORD, Int4Scheme
from service.models.quantized_shards import named_shards

_BITS = 4
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Int4Storage(WeightStorage):
    """The checkpoint's tensors of each part, unchanged; scales in fp32. out_features: of the parts.

    The sizes must fit: `why_not` returned None.
    """

    form = "int4"

    def __init__(self, scheme: Int4Scheme, out_features: Sequence[int], in_features: int) -> None:
        super().__init__()
        self._scheme = scheme
        self._num_parts = len(out_features)
        for part, features in enumerate(out_features):
            for kind, (shape, dtype) in _shapes(scheme, features, in_features).items():
                self.register_buffer(f"{kind}{part}", torch.empty(shape, dtype=dtype))

    @staticmethod
    def why_not(scheme: Int4Scheme, out_features: Sequence[int], in_features: int) -> str | None:
        """Why such a linear cannot be stored; None if it can."""
        group_size = scheme.group_size or in_features
        if in_features % group_size:
            return f"{in_features} input features are not a whole number of groups of {group_size}"
        if not chunk_of(group_size):
            return f"{in_features} input features are not a multiple of {LEAST_CHUNK}"
        if any(features % A_WORD for features in out_features):
            return f"{list(out_features)} output features are not multiples of {A_WORD}"
        return None

    def checkpoint_tensors(self, names: Sequence[str]) -> dict[str, Destination]:
        elements, zeros, scales = self._scheme.tensor_names
        suffixes = {"elements": elements, "scales": scales}
        if self._scheme.has_zeros:
            suffixes["zeros"] = zeros
        return {
            f"{name}.{suffix}": self.get_buffer(f"{kind}{part}")
            for part, name in enumerate(names)
            for kind, suffix in suffixes.items()
        }

    def checkpoint_shards(self, names: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
        return named_shards(self._scheme, names, shards)

    def finished(self, dtype: torch.dtype) -> QuantizedWeight:
        scheme, parts = self._scheme, range(self._num_parts)
        values = torch.cat([_elements(scheme, self.get_buffer(f"elements{part}")) for part in parts])
        scales = torch.cat([_by_feature(scheme, self.get_buffer(f"scales{part}")) for part in parts])
        zeros = None
        if scheme.has_zeros:
            zeros = torch.cat([_zeros(scheme, self.get_buffer(f"zeros{part}")) for part in parts]).contiguous()
        chunk = chunk_of(values.shape[1] // scales.shape[1])
        return QuantizedWeight(pack_int4(values, chunk), _in_16_bits(scales).contiguous(), zeros, dtype)


def _shapes(scheme: Int4Scheme, features: int, size: int) -> dict[str, tuple[tuple[int, int], torch.dtype]]:
    groups = size // (scheme.group_size or size)
    elements = {
        "awq": (size, features // A_WORD),
        "gptq": (size // A_WORD, features),
        "packed": (features, size // A_WORD),
    }[scheme.layout]
    is_by_feature = scheme.layout == "packed"
    shapes = {
        "elements": (elements, torch.int32),
        "scales": ((features, groups) if is_by_feature else (groups, features), torch.float32),
    }
    if scheme.has_zeros:
        zeros = (features // A_WORD, groups) if is_by_feature else (groups, features // A_WORD)
        shapes["zeros"] = (zeros, torch.int32)
    return shapes


def _elements(scheme: Int4Scheme, words: Tensor) -> Tensor:
    """[N, K] uint8."""
    match scheme.layout:
        case "awq":
            return _unpacked(words, _AWQ_ORDER).T
        case "gptq":
            return _unpacked(words.T)
        case "packed":
            return _unpacked(words)


def _zeros(scheme: Int4Scheme, words: Tensor) -> Tensor:
    """[N, G] uint8."""
    match scheme.layout:
        case "awq":
            zeros = _unpacked(words, _AWQ_ORDER).T
        case "gptq":
            zeros = _unpacked(words).T
        case "packed":
            zeros = _unpacked(words.T).T
    return zeros + scheme.zero_offset


def _by_feature(scheme: Int4Scheme, scales: Tensor) -> Tensor:
    return scales if scheme.layout == "packed" else scales.T


def _unpacked(words: Tensor, order: Sequence[int] = range(A_WORD)) -> Tensor:
    """[R, W] int32 -> [R, W * 8] uint8. order: which element is in a word's first 4 bits, in its second, and so on."""
    places = torch.tensor([_BITS * order.index(element) for element in range(A_WORD)], device=words.device)
    shifted = words[:, :, None] >> places.to(torch.int32)
    return (shifted & 15).to(torch.uint8).flatten(1)


def _in_16_bits(scales: Tensor) -> Tensor:
    """In the 16-bit dtype of the checkpoint, if that was one."""
    for dtype in (torch.float16, torch.bfloat16):
        rounded = scales.to(dtype)
        if torch.equal(rounded.float(), scales):
            return rounded
    return scales
