"""y = x W^T + b for few rows in bf16, as decode multiplies: F.linear is the reference.

    y[t, n] = s[n] * (sum over k of x[t, k] * W[n, k]), + b[n]

Tensors (T rows, N outputs, K inputs; N and K multiples of 16):
    x        [T, K]                  bf16, last stride 1; rows may be strided
    panels   [N / 16, K / 2, 16, 2]  W [N, K] rearranged: of 16 outputs, two inputs after the other. bf16, or e4m3 of a
                                     weight with one scale a channel (kernels/quantized_weight.py)
    scales   [N]                     fp32, s; of a plain weight 1
    bias     [N]                     bf16, or None
    returns  [T, N]                  bf16, contiguous, new

Rounding: products exact, sums in fp32, rounded once, with scale and bias. An element of e4m3 below 2^-6, a 28672nd of a
channel's largest, counts as 0. T may be 0. By a bf16 weight each sum is taken pair by pair from the first input to the
last, so a row's result does not depend on the other rows, nor on their number; by one of bytes it is taken in parts,
the more the fewer rows there are.

A panel is read from its first byte to its last, by vectors of 16 outputs and two inputs; up to 16 rows meet each while
it is in a register (VDPBF16PS; every row's sums have a register of their own). Memory is asked 2 KB ahead, so loading
and multiplying go on at once, which oneDNN's product does not manage. Measured on one core with AVX512-bf16, the
linears of 30 layers of a 135M model, ms, oneDNN's packed / this (at 1 row torch's matrix-vector product takes 12.1):
    1 row 14.8 / 6.8    4 rows 12.7 / 7.1    8 rows 16.2 / 9.3    16 rows 23.4 / 17.0    32 rows 39.4 / 32.7
and, on a busier machine:
    32 rows 48.0 / 40.5    64 rows 82.9 / 74.1    128 rows 147 / 136    256 rows 267 / 254    512 rows 535 / 511
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.loops.bf16 import count_up, int64_at
from kernels.loops.team import Loop
from kernels.loops.vector_code import I64, LANES, Value, VectorCode, vector_function
from kernels.quantized_weight import QuantizedWeight, Weight

_AHEAD = 2048  # bytes
_TAKEN_BY_A_THREAD = 4  # pieces: the last ones even out what the system's other work takes from a thread
_FEW_ROWS = 32  # more of them make a single panel a piece worth taking
_SUMS = {1: 8, 2: 4, 4: 4, 8: 2, 16: 1}
"""Rows at once, and by a weight of bytes sums of each row side by side: an addition takes four or six cycles, so there
must be others. By a bf16 weight one sum is enough, as the memory is slower: 20 of those layers on one core, by parts as
here / by one: 1 row 7.32 / 6.69 ms, 2 rows 6.54 / 6.52, 8 rows 9.26 / 8.88."""
_MOST_ROWS_AT_ONCE = max(_SUMS)
_VECTOR_BYTES = 64


def _write_multiply_panel(
    code: VectorCode,
    num_rows: int,
    num_sums: int,
    x: Value,
    x_stride: Value,
    panel: Value,
    steps: Value,
    bias: Value,
    scales: Value,
    y: Value,
    y_stride: Value,
    rows: Value,
    is_fp8: int,
) -> None:
    """Rows past `rows` are computed from the last one, and not written."""
    vector_bytes = _VECTOR_BYTES // 2 if is_fp8 else _VECTOR_BYTES
    builder = code.builder
    last = builder.sub(rows, I64(1))
    row_numbers = [builder.select(builder.icmp_signed("<", I64(r), last), I64(r), last) for r in range(num_rows)]
    row_addresses = [builder.add(x, builder.mul(r, x_stride)) for r in row_numbers]
    with code.repeated(steps, [code.zeros()] * (num_rows * num_sums)) as step:
        panel_address = builder.add(panel, builder.mul(step.index, I64(vector_bytes * num_sums)))
        x_offset = builder.mul(step.index, I64(4 * num_sums))
        sums = list(step.carried)
        for s in range(num_sums):
            if vector_bytes * s % _VECTOR_BYTES == 0:
                code.prefetch(panel_address, vector_bytes * s + _AHEAD)
            load = code.fp8_pairs if is_fp8 else code.pairs
            weights = load(panel_address, vector_bytes * s)
            for r, row_address in enumerate(row_addresses):
                inputs = code.pair_for_all(builder.add(row_address, x_offset), 4 * s)
                sums[r * num_sums + s] = code.add_pair_products(sums[r * num_sums + s], weights, inputs)
        step.result = sums
    for r in range(num_rows):
        total = code.zeros() if is_fp8 else code.widened(bias)
        for s in range(num_sums):
            total = builder.fadd(total, step.result[r * num_sums + s])
        if is_fp8:
            total = code.add_products(code.widened(bias), total, code.floats(scales))
        with builder.if_then(builder.icmp_signed("<", I64(r), rows)):
            code.store_narrowed(total, builder.add(y, builder.mul(y_stride, I64(r))))


_multiply_panel = vector_function(_write_multiply_panel)


def _linear(num_rows: int, num_sums: int, is_fp8: int) -> Loop:
    @no_type_check
    def linear(arguments):
        """Item: some panels, one after the other."""
        a = int64_at(arguments, 12)
        num_pieces, num_panels, num_inputs, rows = a[1], a[2], a[3], a[4]
        x, x_stride, panels, bias, scales, y, y_stride = a[5], a[6], a[7], a[8], a[9], a[10], a[11]
        piece = count_up(arguments)
        while piece < num_pieces:
            for p in range(piece * num_panels // num_pieces, (piece + 1) * num_panels // num_pieces):
                panel = panels + p * num_inputs * (16 if is_fp8 else 32)
                for r in range(0, rows, num_rows):
                    _multiply_panel(
                        num_rows,
                        num_sums,
                        x + r * x_stride,
                        x_stride,
                        panel,
                        num_inputs // (2 * num_sums),
                        bias + 32 * p,
                        scales + 64 * p,
                        y + r * y_stride + 32 * p,
                        y_stride,
                        min(num_rows, rows - r),
                        is_fp8,
                    )
            piece = count_up(arguments)

    return Loop(linear)


_LINEARS = {
    (num_rows, is_fp8): _linear(num_rows, num_sums if is_fp8 else 1, is_fp8)
    for num_rows, num_sums in _SUMS.items()
    for is_fp8 in (0, 1)
}


class PanelLinear:
    """F.linear by one weight, for few rows."""

    __slots__ = ("_is_fp8", "_no_bias", "_panels", "_scales", "is_ordered", "num_bytes", "num_inputs")

    def __init__(self, weight: Weight) -> None:
        num_outputs, num_inputs = weight.shape
        elements = weight if isinstance(weight, Tensor) else weight.elements.view(torch.uint8)
        grouped = elements.reshape(num_outputs // LANES, LANES, num_inputs // 2, 2)
        self._panels = grouped.permute(0, 2, 1, 3).contiguous()
        self._no_bias = torch.zeros(num_outputs, dtype=torch.bfloat16)
        self._is_fp8 = not isinstance(weight, Tensor)
        self.is_ordered = not self._is_fp8
        self._scales = torch.ones(num_outputs) if isinstance(weight, Tensor) else weight.scales.float().view(-1)
        self.num_inputs = num_inputs
        self.num_bytes = weight.nbytes

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        num_rows, num_inputs = x.shape
        num_panels, num_outputs = self._panels.shape[0], self._no_bias.shape[0]
        assert num_inputs == self.num_inputs and x.stride(1) == 1 and x.dtype is torch.bfloat16
        y = torch.empty((num_rows, num_outputs), dtype=torch.bfloat16)
        linear = _LINEARS[min(_MOST_ROWS_AT_ONCE, 1 << (num_rows - 1).bit_length()), int(self._is_fp8)]
        linear(
            True,
            num_panels if num_rows > _FEW_ROWS else min(num_panels, _TAKEN_BY_A_THREAD * torch.get_num_threads()),
            num_panels,
            num_inputs,
            num_rows,
            x.data_ptr(),
            2 * x.stride(0),
            self._panels.data_ptr(),
            (self._no_bias if bias is None else bias).data_ptr(),
            self._scales.data_ptr(),
            y.data_ptr(),
            2 * num_outputs,
        )
        return y


def few_rows_linear(weight: Weight) -> PanelLinear | None:
    """weight [N, K] bf16, or quantized; copied. None where N or K is no multiple of 16, and for other quantized weights
    than finite ones of e4m3 with a scale a channel."""
    num_outputs, num_inputs = weight.shape
    if num_outputs % LANES or num_inputs % 16:
        return None
    if isinstance(weight, QuantizedWeight):
        is_known = not weight.is_int4 and weight.scales.shape[1] == 1
        return PanelLinear(weight) if is_known and not _has_nan(weight.elements) else None
    return PanelLinear(weight.contiguous())


def _has_nan(elements: Tensor) -> bool:
    return bool((elements.view(torch.uint8).bitwise_and(0x7F) == 0x7F).any())
