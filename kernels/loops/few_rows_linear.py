"""y = x W^T + b for few rows in bf16, as in a decode: F.linear is the reference.

    y[t, n] = b[n] + sum over g of s[n, g] * (sum over k in g of x[t, k] * w[n, k])

Tensors (T rows, N outputs, K inputs, G groups of K / G adjacent inputs; N and K multiples of 16):
    x        [T, K]                  bf16, last stride 1; rows may be strided
    panels   [N / 16, K / 2, 16, 2]  w [N, K] rearranged: for 16 outputs, two inputs at a time. bf16 or e4m3;
             [N / 16, K / 8, 16, 2]  or 4-bit elements (int4, MXFP4) in 16-bit words: for 16 outputs, eight inputs at a
                                     time. A word has one of the first two inputs in its lowest bits, then one of the
                                     next two, ...
             [N / 16, K / 4, 4, 2, 4, 2]  int8, its bits as `VectorCode.int8_pairs` wants them: of four times four
                                     outputs two times two inputs
    scales   [N / 16, G, 16]         fp32, s; a plain weight has none, and G = 1
    offsets  [N / 16, G, 16]         uint8, for int4 with zeros: 16 minus the zero. Without zeros, an element of 8 is 0
    bias     [N]                     bf16, or None
    returns  [T, N]                  bf16, contiguous, new

Quantized weights are those of kernels/quantized_weight.py and kernels/mxfp4.py. Rounding: products exact, sums in fp32,
rounded once, after scales and bias. An e4m3 element below 2^-6 (1/28672 of the largest possible one) counts as 0. T may
be 0. Each sum is taken pair by pair from the first input to the last, group by group, so a row's result does not depend
on the other rows or on their number. int8 comes into registers with a half more, exactly, and a group's sum begins
with minus half the sum of its x.

A panel is read from beginning to end, in vectors of 16 outputs and two inputs; some rows are multiplied by each vector
of some panels while it is in a register (VDPBF16PS; each row's sums of a panel have their own register). 4-bit elements
become bf16 there, by a table in a register. Memory is prefetched 2 KB ahead, so loading and multiplying overlap, which
oneDNN's product does not achieve. int8 becomes bf16 by tables, too, a number's two bytes apart, which needs
AVX512-VBMI. Measurements: loadtest/log/cpu.md.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.loops.bf16 import count_up, int64_at
from kernels.loops.team import Loop
from kernels.loops.vector_code import I64, LANES, Value, VectorCode, has_vbmi, vector_function
from kernels.mxfp4 import GROUP
from kernels.mxfp4 import NUMBERS as MXFP4_NUMBERS
from kernels.quantized_weight import Weight, unpack_int4

_AHEAD = 2048  # bytes
_AHEAD_LEVEL = 2
"""The cache that they are asked into. Few requests of the first one can be under way at once: by it a row's products of
SmolLM2-135M take 1.2 times as long in bf16, and 1.4 times in int8 (loadtest/log/quantization.md)."""
_TAKEN_BY_A_THREAD = 4  # pieces per thread: the last ones balance time that the system takes from a thread
_PIECE_BYTES = 1 << 18  # of panels, which stay in a core's cache while many rows are multiplied
_PANELS_AT_ONCE = {1: 4, 2: 4, 4: 4, 8: 2}
"""Rows at once -> panels at once. An addition takes four to six cycles, so others must run meanwhile; and what is read
of a row serves several panels."""
_MOST_ROWS_AT_ONCE = max(_PANELS_AT_ONCE)
_VECTOR_BYTES = 64
_STEP = 8  # inputs


class _Form(IntEnum):
    """The form of the elements in panels."""

    BF16 = 0
    FP8 = 1
    MXFP4 = 2
    INT4 = 3
    INT4_WITH_ZEROS = 4
    INT8 = 5

    @property
    def step_bytes(self) -> int:
        """Bytes of a panel per step of _STEP inputs."""
        return {_Form.BF16: 4, _Form.FP8: 2, _Form.INT8: 2}.get(self, 1) * _VECTOR_BYTES


_NUMBERS: Mapping[_Form, Sequence[float]] = {
    _Form.MXFP4: MXFP4_NUMBERS,
    _Form.INT4: range(-8, 8),
    _Form.INT4_WITH_ZEROS: range(-16, 16),
}
"""The values of 4-bit elements; with zeros, of an element plus its offset."""


class _Panels(NamedTuple):
    """The addresses of some panels' data, one per panel, and the bytes of elements per panel."""

    num_bytes: Value
    elements: list[Value]
    scales: list[Value]
    offsets: list[Value]


def _write_multiply_panels(
    code: VectorCode,
    form_number: int,
    num_rows: int,
    num_panels: int,
    x: Value,
    x_stride: Value,
    elements: Value,
    num_groups: Value,
    group_steps: Value,
    bias: Value,
    scales: Value,
    offsets: Value,
    y: Value,
    y_stride: Value,
    rows: Value,
    panels: Value,
) -> None:
    """Rows past `rows` and panels past `panels` are computed from the last one and not written."""
    form, builder = _Form(form_number), code.builder
    row_numbers, panel_numbers = _up_to(builder, num_rows, rows), _up_to(builder, num_panels, panels)
    row_addresses = [builder.add(x, builder.mul(number, x_stride)) for number in row_numbers]
    starts = _panels(builder, form, panel_numbers, elements, scales, offsets, num_groups, group_steps)
    begin = [code.widened(builder.add(bias, builder.mul(number, I64(2 * LANES)))) for number in panel_numbers]
    totals = [total for total in begin for _ in range(num_rows)]
    if form is _Form.BF16:
        totals = _add_group(code, form, starts, row_addresses, I64(0), group_steps, totals)
    else:
        with code.repeated(num_groups, totals) as group:
            first = _first_sums(code, form, row_addresses, group.index, group_steps) * num_panels
            sums = _add_group(code, form, starts, row_addresses, group.index, group_steps, first)
            group_scales = [code.floats(_of_group(builder, at, group.index, 4 * LANES)) for at in starts.scales]
            by_sum = [scale for scale in group_scales for _ in range(num_rows)]
            group.result = list(map(code.add_products, group.carried, sums, by_sum))
        totals = list(group.result)
    for p in range(num_panels):
        with builder.if_then(builder.icmp_signed("<", I64(p), panels)):
            for r in range(num_rows):
                with builder.if_then(builder.icmp_signed("<", I64(r), rows)):
                    address = builder.add(y, builder.add(builder.mul(y_stride, I64(r)), I64(2 * LANES * p)))
                    code.store_narrowed(totals[p * num_rows + r], address)


def _up_to(builder: Value, count: int, size: Value) -> list[Value]:
    """0 .. count - 1; numbers from `size` on are replaced by the last one below it."""
    last = builder.sub(size, I64(1))
    return [builder.select(builder.icmp_signed("<", I64(i), last), I64(i), last) for i in range(count)]


def _panels(
    builder: Value,
    form: _Form,
    numbers: list[Value],
    elements: Value,
    scales: Value,
    offsets: Value,
    num_groups: Value,
    group_steps: Value,
) -> _Panels:
    def starts(begin: Value, group_bytes: Value) -> list[Value]:
        size = builder.mul(num_groups, group_bytes)
        return [builder.add(begin, builder.mul(number, size)) for number in numbers]

    group_bytes = builder.mul(group_steps, I64(form.step_bytes))
    of_groups = starts(scales, I64(4 * LANES)), starts(offsets, I64(LANES))
    return _Panels(builder.mul(num_groups, group_bytes), starts(elements, group_bytes), *of_groups)


def _of_group(builder: Value, start: Value, group: Value, group_bytes: int) -> Value:
    return builder.add(start, builder.mul(group, I64(group_bytes)))


def _first_sums(code: VectorCode, form: _Form, rows: list[Value], group: Value, group_steps: Value) -> list[Value]:
    """What the rows' sums of a group begin with: without the halves that int8 elements come with."""
    if form is not _Form.INT8:
        return [code.zeros()] * len(rows)
    builder = code.builder
    size = builder.mul(group_steps, I64(_STEP))
    starts = [builder.add(row, builder.mul(builder.mul(group, size), I64(2))) for row in rows]
    with code.repeated(builder.sdiv(size, I64(LANES)), [code.zeros()] * len(rows)) as some:
        offset = builder.mul(some.index, I64(2 * LANES))
        some.result = [
            builder.fadd(total, code.widened(builder.add(start, offset)))
            for total, start in zip(some.carried, starts, strict=True)
        ]
    return [builder.fmul(code.for_all(code.sum_of(total)), code.floats_for_all(-0.5)) for total in some.result]


def _add_group(
    code: VectorCode,
    form: _Form,
    panels: _Panels,
    rows: list[Value],
    group: Value,
    group_steps: Value,
    totals: list[Value],
) -> list[Value]:
    """totals: those of all rows for the first panel, then for the next."""
    builder = code.builder
    has_zeros = form is _Form.INT4_WITH_ZEROS
    offsets = [code.byte_pairs(_of_group(builder, at, group, LANES)) if has_zeros else None for at in panels.offsets]
    first = builder.mul(group, group_steps)
    with code.repeated(group_steps, totals) as step:
        number = builder.add(first, step.index)
        offset = builder.mul(number, I64(form.step_bytes))
        addresses = [builder.add(start, offset) for start in panels.elements]
        inputs = [builder.add(row, builder.mul(number, I64(2 * _STEP))) for row in rows]
        ahead = _ahead(builder, panels, offset)
        for start in panels.elements:
            for vector in range(0, form.step_bytes, _VECTOR_BYTES):
                code.prefetch(builder.add(start, ahead), vector, level=_AHEAD_LEVEL)
        words = [code.words(address) for address in addresses] if form in _NUMBERS else []
        sums = list(step.carried)
        two_pairs: list[tuple[Value, Value]] = []
        for pair in range(_STEP // 2):
            match form:
                case _Form.BF16:
                    weights = [code.pairs(address, 64 * pair) for address in addresses]
                case _Form.FP8:
                    weights = [code.fp8_pairs(address, 32 * pair) for address in addresses]
                case _Form.INT8:
                    if pair % 2 == 0:
                        two_pairs = [code.int8_pairs(address, 32 * pair) for address in addresses]
                    weights = [pairs[pair % 2] for pairs in two_pairs]
                case _:
                    weights = [
                        code.looked_up_pairs(word, pair, _NUMBERS[form], offset)
                        for word, offset in zip(words, offsets, strict=True)
                    ]
            for r, row in enumerate(inputs):
                x_pair = code.pair_for_all(row, 4 * pair)
                for p, weight in enumerate(weights):
                    sums[p * len(rows) + r] = code.add_pair_products(sums[p * len(rows) + r], weight, x_pair)
        step.result = sums
    return list(step.result)


def _ahead(builder: Value, panels: _Panels, offset: Value) -> Value:
    """The offset to prefetch. After a panel's end lies the next one, which is being read at the same time, so the
    offset skips to the panel after those."""
    ahead = builder.add(offset, I64(_AHEAD))
    others = builder.mul(panels.num_bytes, I64(len(panels.elements) - 1))
    return builder.select(builder.icmp_signed("<", ahead, panels.num_bytes), ahead, builder.add(ahead, others))


_multiply_panels = vector_function(_write_multiply_panels)


def _linear(form: int, step_bytes: int, num_rows: int, at_once: int) -> Loop:
    @no_type_check
    def linear(arguments):
        """Item: some panels, in which all rows are multiplied by them."""
        a = int64_at(arguments, 15)
        num_pieces, num_panels, rows, num_groups, group_steps = a[1], a[2], a[3], a[4], a[5]
        x, x_stride, panels, bias, scales, offsets, y, y_stride = a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13]
        num_units = (num_panels + at_once - 1) // at_once
        panel_bytes = num_groups * group_steps * step_bytes
        piece = count_up(arguments)
        while piece < num_pieces:
            first = at_once * (piece * num_units // num_pieces)
            stop = min(at_once * ((piece + 1) * num_units // num_pieces), num_panels)
            for r in range(0, rows, num_rows):
                for p in range(first, stop, at_once):
                    _multiply_panels(
                        form,
                        num_rows,
                        at_once,
                        x + r * x_stride,
                        x_stride,
                        panels + p * panel_bytes,
                        num_groups,
                        group_steps,
                        bias + 32 * p,
                        scales + 64 * p * num_groups,
                        offsets + 16 * p * num_groups,
                        y + r * y_stride + 32 * p,
                        y_stride,
                        min(num_rows, rows - r),
                        min(at_once, num_panels - p),
                    )
            piece = count_up(arguments)

    return Loop(linear)


@functools.cache
def _linears(form: _Form) -> Mapping[int, Loop]:
    """Rows at once -> loop; compiled for the forms that occur."""
    return {
        num_rows: _linear(int(form), form.step_bytes, num_rows, at_once)
        for num_rows, at_once in _PANELS_AT_ONCE.items()
    }


class PanelLinear:
    """F.linear with one weight, for few rows."""

    __slots__ = ("_bias", "_group_steps", "_linears", "_num_groups", "_offsets", "_panels", "_scales", "num_inputs")

    def __init__(
        self, form: _Form, elements: Tensor, scales: Tensor | None = None, zeros: Tensor | None = None
    ) -> None:
        """elements [N, K]: numbers of bf16, e4m3 or int8, or the four bits of each, uint8. scales, zeros: [N, G]."""
        num_outputs, self.num_inputs = elements.shape
        self._bias = torch.zeros(num_outputs, dtype=torch.bfloat16)
        self._num_groups = 1 if scales is None else scales.shape[1]
        self._scales = torch.empty(0) if scales is None else _by_panel(scales.float())
        self._offsets = torch.empty(0) if zeros is None else _by_panel(16 - zeros)
        rearranged = {_Form.BF16: _panels_of, _Form.FP8: _panels_of, _Form.INT8: _panels_of_int8}
        self._panels = rearranged.get(form, _panels_of_halves)(elements)
        self._group_steps = self.num_inputs // self._num_groups // _STEP
        self._linears = _linears(form)

    @property
    def num_bytes(self) -> int:
        """Bytes that it holds."""
        return self._panels.nbytes + self._scales.nbytes + self._offsets.nbytes + self._bias.nbytes

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        num_rows, num_inputs = x.shape
        num_panels, num_outputs = self._panels.shape[0], self._bias.shape[0]
        assert num_inputs == self.num_inputs and x.stride(1) == 1 and x.dtype is torch.bfloat16
        y = torch.empty((num_rows, num_outputs), dtype=torch.bfloat16)
        rows_at_once = min(_MOST_ROWS_AT_ONCE, 1 << (num_rows - 1).bit_length())
        num_units = -(-num_panels // _PANELS_AT_ONCE[rows_at_once])
        num_pieces = max(_TAKEN_BY_A_THREAD * torch.get_num_threads(), self._panels.nbytes // _PIECE_BYTES)
        self._linears[rows_at_once](
            True,
            min(num_units, num_pieces),
            num_panels,
            num_rows,
            self._num_groups,
            self._group_steps,
            x.data_ptr(),
            2 * x.stride(0),
            self._panels.data_ptr(),
            (self._bias if bias is None else bias).data_ptr(),
            self._scales.data_ptr(),
            self._offsets.data_ptr(),
            y.data_ptr(),
            2 * num_outputs,
        )
        return y


def takes_weight(num_outputs: int, num_inputs: int) -> bool:
    return num_outputs % LANES == 0 and num_inputs % 16 == 0


def takes_int8(num_outputs: int, num_inputs: int) -> bool:
    """Of such elements. Of the processors with AVX512-bf16 one generation has no AVX512-VBMI."""
    return takes_weight(num_outputs, num_inputs) and has_vbmi()


def few_rows_linear(weight: Weight) -> PanelLinear | None:
    """weight [N, K] bf16 or quantized; it is copied. None for what is not supported (`takes_weight`, `takes_int8`), and
    for e4m3 with a NaN."""
    if not takes_weight(*weight.shape):
        return None
    if isinstance(weight, Tensor):
        return PanelLinear(_Form.BF16, weight)
    if weight.is_int8:
        is_taken = takes_int8(*weight.shape)
        return PanelLinear(_Form.INT8, weight.elements, weight.scales) if is_taken else None
    if not weight.is_int4:
        has_nan = _has_nan(weight.elements)
        return None if has_nan else PanelLinear(_Form.FP8, weight.elements.view(torch.uint8), weight.scales)
    form = _Form.INT4 if weight.zeros is None else _Form.INT4_WITH_ZEROS
    return PanelLinear(form, unpack_int4(weight.elements, weight.chunk), weight.scales, weight.zeros)


def few_rows_mxfp4(numbers: Tensor, scales: Tensor) -> PanelLinear | None:
    """A weight [N, K] as in kernels/mxfp4.py, [N, K / 2] and [N, K / 32]; otherwise like `few_rows_linear`."""
    elements = unpack_int4(numbers, GROUP)
    return (
        PanelLinear(_Form.MXFP4, elements, torch.exp2(scales.float() - 127)) if takes_weight(*elements.shape) else None
    )


def _panels_of(elements: Tensor) -> Tensor:
    num_outputs, num_inputs = elements.shape
    grouped = elements.reshape(num_outputs // LANES, LANES, num_inputs // 2, 2)
    return grouped.permute(0, 2, 1, 3).contiguous()


def _panels_of_int8(elements: Tensor) -> Tensor:
    """As `VectorCode.int8_pairs` wants them."""
    num_outputs, num_inputs = elements.shape
    is_negative = (elements < 0).to(torch.uint8)
    magnitudes = torch.where(elements < 0, ~elements, elements).view(torch.uint8)
    codes = magnitudes >> 1 | (magnitudes & 1) << 6 | is_negative << 7
    return codes.view(num_outputs // LANES, 4, 4, num_inputs // 4, 2, 2).permute(0, 3, 1, 4, 2, 5).contiguous()


def _panels_of_halves(values: Tensor) -> Tensor:
    num_outputs, num_inputs = values.shape
    halves = values.view(num_outputs // LANES, LANES, num_inputs // _STEP, 2, 2, 2).permute(4, 0, 2, 1, 5, 3)
    return (halves[0] | halves[1] << 4).contiguous()


def _by_panel(of_groups: Tensor) -> Tensor:
    """[N, G] -> [N / 16, G, 16]."""
    return of_groups.view(len(of_groups) // LANES, LANES, -1).mT.contiguous()


def _has_nan(elements: Tensor) -> bool:
    return bool((elements.view(torch.uint8).bitwise_and(0x7F) == 0x7F).any())
