"""Linear projection of many tokens by a quantized weight (kernels/quantized_weight.py); few go through skinny_linear.

    out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]

Tensors (M rows, N output features, K input features):
    x        [M, K]  bf16 or fp32, last stride 1; or, where `multiplies_fp8`, Fp8Rows of it (kernels/fp8_rows.py)
    weight   [N, K]  QuantizedWeight for x
    bias     [N]     like x; None for none
    arrivals         as of kernels/skinny_linear.py; may be None
    returns  [M, N]  like x, or bf16

fp8 with one scale a channel, on a GPU whose matrix units multiply fp8 (compute capability 8.9 and later), for bf16 and
K and N that are multiples of 16 and no fewer than 1,024: x is rounded to fp8 too, by a scale for each row
(kernels/fp8_rows.py). A batch's rows are then multiplied by kernels/fp8_linear.py, more by cuBLAS or CUTLASS, whichever
torch takes. Static scales that a checkpoint brings for x are not used: a row's own are the better ones. Sums are those
of the matrix units, "fast accumulation", which vLLM and SGLang use likewise.
int4 of a batch's rows goes by kernels/int4_linear.py, where that takes it. All else is multiplied by the plain matrix,
made for this one call: 0.06 to 0.1 ms for Llama-8B's largest, which is a tenth of its product with 2,048 rows. M may
be 0.
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
"""For which fp8_linear is the faster one above 64 rows: at 256, with the rounding of x, of Llama-8B's gate_up torch's
takes 53 us and this 58, of down 44 and 38."""
_MOST_INT4_ROWS = 512
"""At which, of Llama-8B, int4_linear takes 323 us a layer, cuBLAS of bf16 301, and making the plain matrices 150."""
_MULTIPLE = 16
_LEAST_SIDE = 1024
"""Of a narrower weight the products are no faster by fp8, and rounding x costs what it always does. us on one H200 at
2,048 rows: bf16, fp8 with the rounding of x, and by the plain matrix made for the call. SmolLM2-135M, features x
inputs: 960x576 7.0, 9.7, 9.3; 576x576 5.4, 9.6, 7.6; 3072x576 14.1, 17.5, 17.7; 576x1536 8.4, 11.7, 10.7.
Qwen3-0.6B's 4096x1024 26.2, 22.5, 31.0; 1024x3072 18.7, 17.1, 22.9. Small models also lose the most by rounding."""


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
    """By torch, where `multiplies_fp8`. M above 0."""
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
    """Whether matrix units do it."""
    if weight.is_int4 or weight.scales.shape[1] > 1 or not weight.is_cuda or weight.dtype is not torch.bfloat16:
        return False
    if any(n % _MULTIPLE or n < _LEAST_SIDE for n in weight.shape):
        return False
    return _has_fp8_units(weight.device)


@functools.cache
def _has_fp8_units(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= _FP8_UNITS
