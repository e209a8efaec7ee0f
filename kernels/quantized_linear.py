"""Linear projection of many tokens by a quantized weight (kernels/quantized_weight.py); few tokens use skinny_linear.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M rows, N output features, K input features):
    x        [M, K]  bf16 or fp32, last stride 1; if `multiplies_fp8`, also Fp8Rows of it (kernels/fp8_rows.py)
    weight   [N, K]  QuantizedWeight for x
    bias     [N]     like x; None for none
    arrivals         as in kernels/skinny_linear.py; may be None
    returns  [M, N]  like x, or bf16

fp8 with one scale per channel, for bf16, on a GPU whose tensor cores multiply fp8 (compute capability 8.9 and later),
with K and N multiples of 16 and at least 1,024: x is rounded to fp8 too, with one scale per row (kernels/fp8_rows.py).
Then kernels/fp8_linear.py multiplies a batch's rows; more rows are multiplied by cuBLAS or CUTLASS, whichever torch
uses. Static scales for x in a checkpoint are not used: each row's own scale is better. The tensor cores sum with "fast
accumulation", as in vLLM and SGLang. int4 with a batch's rows uses kernels/int4_linear.py if that takes it. In all
other cases the plain matrix is made for this one call: 0.06 to 0.1 ms for Llama-8B's largest, a tenth of its product
with 2,048 rows. M may be 0.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dequantize import dequantize
from kernels.fp8_linear import MAX_FP8_ROWS, fp8_linear
from kernels.fp8_rows import Fp8Rows, fp8_rows
from kernels.int4_linear import int4_linear
from kernels.int4_linear import takes as takes_int4
from kernels.quantized_weight import QuantizedWeight, dense
from kernels.skinny_config import MAX_ROWS

_FP8_UNITS = (8, 9)
_MOST_FEATURES = 12288
"""Most features for which fp8_linear is faster above 64 rows. At 256 rows, including the rounding of x: Llama-8B's
gate_up takes 58 us and torch's product 53, down 38 and 44."""
_MOST_INT4_ROWS = 512
"""At this number int4_linear takes 323 us per layer of Llama-8B, cuBLAS with bf16 301, and making the plain matrices
150."""
_MULTIPLE = 16
_LEAST_SIDE = 1024
"""For a narrower weight fp8 products are no faster, but rounding x costs the same. us on one H200 at 2,048 rows: bf16,
fp8 including the rounding of x, the plain matrix made for the call. SmolLM2-135M, features x inputs: 960x576 7.0, 9.7,
9.3; 576x576 5.4, 9.6, 7.6; 3072x576 14.1, 17.5, 17.7; 576x1536 8.4, 11.7, 10.7. Qwen3-0.6B: 4096x1024 26.2, 22.5, 31.0;
1024x3072 18.7, 17.1, 22.9. Small models also lose the most accuracy by rounding."""


def quantized_linear_reference(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, dense(weight), bias)


def quantized_linear(
    x: Tensor | Fp8Rows, weight: QuantizedWeight, bias: Tensor | None = None, arrivals: Tensor | None = None
) -> Tensor:
    if isinstance(x, Tensor):
        if 0 < x.shape[0] <= _MOST_INT4_ROWS and takes_int4(x, weight):
            return int4_linear(x, weight, bias, arrivals)
        if not x.shape[0] or not multiplies_fp8(weight):
            return F.linear(x, dequantize(weight), bias)
        x = fp8_rows(x)
    if x.values.shape[0] <= (MAX_FP8_ROWS if weight.shape[0] <= _MOST_FEATURES else MAX_ROWS):
        return fp8_linear(*x, weight, bias, arrivals)
    return product_of_many_rows(x, weight, bias)


def product_of_many_rows(x: Fp8Rows, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """torch's product, for weights that `multiplies_fp8`. M > 0."""
    product: Tensor = torch._scaled_mm(
        x.values,
        weight.elements.t(),
        scale_a=x.scales,
        scale_b=weight.scales.view(1, -1),
        bias=bias,
        out_dtype=weight.dtype,
        use_fast_accum=True,
    )
    return product


def multiplies_fp8(weight: QuantizedWeight) -> bool:
    """Whether tensor cores can multiply this weight in fp8."""
    if (
        weight.is_int4
        or weight.is_int8
        or weight.scales.shape[1] > 1
        or not weight.is_cuda
        or weight.dtype is not torch.bfloat16
    ):
        return False
    if any(n % _MULTIPLE or n < _LEAST_SIDE for n in weight.shape):
        return False
    return _has_fp8_units(weight.device)


@functools.cache
def _has_fp8_units(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _FP8_UNITS
