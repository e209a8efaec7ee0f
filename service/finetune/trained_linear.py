"""A frozen linear with trained adapters beside it (LoRA, Hu et al. 2021), forward and backward.

    y = x W^T + bias;  shrunk = x A^T;  y[part] += scale * shrunk[part] B[part]^T      for each trained part
    shrunk_grad[part] = scale * y_grad[part] B[part]
    x_grad = y_grad W + shrunk_grad A
    A_grad += shrunk_grad^T x;  B_grad[part] += scale * y_grad[part]^T shrunk[part]

W is the serving weight, used in place; A of all parts is one matrix. T tokens: x [T, in_features], y [T, out_features],
shrunk [T, shrunk_size].

If W is sharded over ranks: a rank with some outputs has those rows of B, and its x_grad is a partial sum. A rank with
some inputs has those columns of A, and its y and shrunk are partial sums. Gradients of A and B are linear in the
partial sums, so each is the sum over ranks of what each rank has, with zeros elsewhere; that sum is made once per
optimizer step (lora_training.py). x_grad and y are summed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from service.finetune.lora_parameters import LoraParameters
from service.layers.linear import NamedLinear
from service.layers.tensor_parallel import ALONE, TensorParallel


class TrainedLinear:
    """shrunk_size: rank * trained parts; 0 if no part is trained. Values are in the model's dtype,
    gradients of A and B in fp32."""

    def __init__(
        self, linear: NamedLinear, parameters: LoraParameters, scale: float, parallel: TensorParallel = ALONE
    ) -> None:
        self._weight = linear.linear.plain_weight.detach()
        bias = linear.linear.bias
        self._bias = None if bias is None else bias.detach()
        self._scale = scale
        self._rank = parameters.layout.rank
        shards = linear.linear.weight_shards
        self._parts, self._a, self._a_gradient = parameters.parts_of(linear.names, linear.linear.out_features, shards)
        divided = {shard.dim for shard in shards if shard is not None}
        self._sums_outputs, self._sums_input_gradients = 1 in divided, 0 in divided
        self._parallel = parallel
        self.shrunk_size = self._rank * len(self._parts)

    def forward(self, x: Tensor, y: Tensor, shrunk: Tensor) -> None:
        """Fills y and shrunk."""
        if self._bias is None:
            torch.mm(x, self._weight.t(), out=y)
        else:
            torch.addmm(self._bias, x, self._weight.t(), out=y)
        if self._parts:
            torch.mm(x, self._a.t(), out=shrunk)
            for part, shrunk_part in zip(self._parts, self._by_part(shrunk), strict=True):
                y[:, part.columns].addmm_(shrunk_part, part.matrices.b.t(), alpha=self._scale)
        if self._sums_outputs:
            y.copy_(self._parallel.all_reduce(y.clone()))

    def shrunk_gradient(self, y_grad: Tensor) -> Tensor:
        """shrunk_grad [T, shrunk_size]."""
        shrunk_grad = y_grad.new_empty(y_grad.shape[0], self.shrunk_size)
        for part, grad_part in zip(self._parts, self._by_part(shrunk_grad), strict=True):
            y_part, b = y_grad[:, part.columns], part.matrices.b
            torch.addmm(grad_part, y_part, b, beta=0, alpha=self._scale, out=grad_part)
        return shrunk_grad

    def input_gradient(self, y_grad: Tensor, shrunk_grad: Tensor) -> Tensor:
        """x_grad."""
        x_grad = torch.mm(y_grad, self._weight)
        if self._parts:
            x_grad.addmm_(shrunk_grad, self._a)
        return self._parallel.all_reduce(x_grad) if self._sums_input_gradients else x_grad

    def accumulate(self, x: Tensor, shrunk: Tensor, y_grad: Tensor, shrunk_grad: Tensor) -> None:
        """Add to the gradients of A and B."""
        if not self._parts:
            return
        _add_product(self._a_gradient, shrunk_grad.t(), x, 1.0)
        for part, shrunk_part in zip(self._parts, self._by_part(shrunk), strict=True):
            _add_product(part.gradients.b, y_grad[:, part.columns].t(), shrunk_part, self._scale)

    def _by_part(self, shrunk: Tensor) -> Sequence[Tensor]:
        return shrunk.split(self._rank, 1) if self._parts else ()


def _add_product(total: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """total [m, n] fp32 += scale * left [m, k] right [k, n]."""
    if left.dtype is torch.float32:
        total.addmm_(left, right, alpha=scale)
    elif left.is_cuda:  # cuBLAS accumulates into fp32 itself
        torch.ops.aten.addmm.dtype_out(total, left, right, torch.float32, alpha=scale, out=total)
    else:
        total.add_(torch.mm(left, right), alpha=scale)
