"""What fp8 weights are read into, or made in from plain ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.quantized_weight import FP8, QuantizedWeight
from service.layers.shard import Shard
from service.layers.weight_storage import Destination, QuantizedRows, WeightStorage
from service.models.quantization import Fp8Scheme
from service.models.quantized_shards import named_shards


class Fp8Storage(WeightStorage):
    """elements [N, K]. scales: fp32, as in the checkpoint, those of the parts one below another: [N, 1] per channel,
    [parts, 1] per tensor, [rows of blocks, K / block] per block, where each part begins a new row of blocks.

    out_features: of the parts.
    """

    form = "fp8"
    elements: Tensor
    scales: Tensor

    def __init__(self, scheme: Fp8Scheme, out_features: Sequence[int], in_features: int) -> None:
        super().__init__()
        self._scheme = scheme
        self._out_features = list(out_features)
        rows, size = scheme.block
        self._scale_rows = {
            "load": self._out_features,
            "channel": self._out_features,
            "tensor": [1] * len(self._out_features),
            "block": [-(-features // rows) for features in self._out_features],
        }[scheme.scales]
        num_scales = -(-in_features // size) if scheme.scales == "block" else 1
        self.register_buffer("elements", torch.empty(sum(out_features), in_features, dtype=FP8))
        self.register_buffer("scales", torch.empty(sum(self._scale_rows), num_scales, dtype=torch.float32))

    def checkpoint_tensors(self, names: Sequence[str]) -> dict[str, Destination]:
        elements, scales = self.elements.split(self._out_features), self.scales.split(self._scale_rows)
        parts = list(zip(names, elements, scales, strict=True))
        if self._scheme.scales == "load":
            return {f"{name}.weight": QuantizedRows(rows, scale) for name, rows, scale in parts}
        tensors: dict[str, Destination] = {f"{name}.weight": rows for name, rows, _ in parts}
        return tensors | {f"{name}.{self._scheme.scale_name}": scale for name, _, scale in parts}

    def checkpoint_shards(self, names: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
        return named_shards(self._scheme, names, shards)

    def finished(self, dtype: torch.dtype) -> QuantizedWeight:
        """A block's scale is repeated for each of its rows. That takes a 32nd of the elements' bytes for blocks of 128,
        and a part need not end at a block."""
        scales = self.scales
        if self._scheme.scales == "tensor":
            counts = torch.tensor(self._out_features, device=scales.device)
            scales = scales.repeat_interleave(counts, 0)
        if self._scheme.scales == "block":
            parts = zip(scales.split(self._scale_rows), self._out_features, strict=True)
            rows = self._scheme.block[0]
            scales = torch.cat([part.repeat_interleave(rows, 0)[:features] for part, features in parts])
        return QuantizedWeight(self.elements, scales.contiguous(), None, dtype)
