"""Buffers that a checkpoint's int8 weights are read into, in the layouts of three formats, and their conversion to one
`QuantizedWeight` (kernels/quantized_weight.py).

Per part with N output features, K input features and G groups. Words are of 32 bits and hold four elements plus 128,
the first in the lowest bits:

    compressed-tensors, int-quantized    weight [N, K]             weight_scale [N, G], [1] for a whole tensor
    compressed-tensors, pack-quantized   weight_packed [N, K / 4]  weight_scale, likewise
    GPTQ                                 qweight [K / 4, N]        scales [G, N]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.quantized_weight import QuantizedWeight
from service.layers.shard import Shard
from service.layers.weight_storage import Destination, WeightStorage
from service.models.quantization import INT8, INT8_IN_A_WORD, Int8Scheme
from service.models.quantized_shards import named_shards

_ZERO = 128


class Int8Storage(WeightStorage):
    """The checkpoint's tensors of each part, unchanged; scales in fp32. out_features: of the parts.

    Sizes fit: `why_not` has returned None.
    """

    form = INT8

    def __init__(self, scheme: Int8Scheme, out_features: Sequence[int], in_features: int) -> None:
        super().__init__()
        self._scheme = scheme
        self._out_features = list(out_features)
        for part, features in enumerate(out_features):
            elements, scales = _shapes(scheme, features, in_features)
            dtype = torch.int8 if scheme.layout == "bytes" else torch.int32
            self.register_buffer(f"elements{part}", torch.empty(elements, dtype=dtype))
            self.register_buffer(f"scales{part}", torch.empty(scales, dtype=torch.float32))

    @staticmethod
    def why_not(scheme: Int8Scheme, in_features: int) -> str | None:
        """Why such a linear cannot be stored; None: it can."""
        if in_features % (scheme.group_size or in_features):
            return f"{in_features} input features cannot be split into groups of {scheme.group_size}"
        if scheme.layout != "bytes" and in_features % INT8_IN_A_WORD:
            return f"{in_features} input features are not a multiple of {INT8_IN_A_WORD}"
        return None

    def checkpoint_tensors(self, names: Sequence[str]) -> dict[str, Destination]:
        elements, scales = self._scheme.tensor_names
        return {
            f"{name}.{suffix}": self.get_buffer(f"{kind}{part}")
            for part, name in enumerate(names)
            for kind, suffix in (("elements", elements), ("scales", scales))
        }

    def checkpoint_shards(self, names: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
        return named_shards(self._scheme, names, shards)

    def finished(self, dtype: torch.dtype) -> QuantizedWeight:
        parts = range(len(self._out_features))
        elements = torch.cat([self._elements(self.get_buffer(f"elements{part}")) for part in parts])
        scales = torch.cat([self._scales(part) for part in parts])
        return QuantizedWeight(elements, scales.contiguous(), None, dtype)

    def _elements(self, stored: Tensor) -> Tensor:
        """[N, K] int8."""
        match self._scheme.layout:
            case "bytes":
                return stored
            case "packed":
                return _unpacked(stored)
            case "gptq":
                return _unpacked(stored.T)

    def _scales(self, part: int) -> Tensor:
        """[N, G]."""
        stored = self.get_buffer(f"scales{part}")
        if self._scheme.is_of_tensor:
            return stored.expand(self._out_features[part], 1)
        return stored.T if self._scheme.layout == "gptq" else stored


def _shapes(scheme: Int8Scheme, features: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of elements and scales."""
    groups, words = size // (scheme.group_size or size), size // INT8_IN_A_WORD
    elements = {"bytes": (features, size), "packed": (features, words), "gptq": (words, features)}[scheme.layout]
    if scheme.is_of_tensor:
        return elements, (1, 1)
    return elements, (groups, features) if scheme.layout == "gptq" else (features, groups)


def _unpacked(words: Tensor) -> Tensor:
    """[R, W] int32 -> [R, W * 4] int8."""
    places = 8 * torch.arange(INT8_IN_A_WORD, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> places & 255) - _ZERO).to(torch.int8).flatten(1)
