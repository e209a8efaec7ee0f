"""Where a branch (attention or MLP) joins the residual stream: its last product, the norm of the sum, and the next
branch's first product.

Unfused, each of these is a kernel, and so is an activation that follows. For few rows on a GPU, two kernels are enough:

  1. multiply, add to the residual, sum the squares of each row    (kernels/linear_add_norm.py)
  2. multiply by the next weight, then divide by the row's norm    (kernels/norm_linear.py)

The division can come last, because a row's norm is one number: dividing the row, or its product, gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.layers.linear import Linear
from service.layers.linear_method import Activated, Normed
from service.layers.rms_norm import ResidualRMSNorm


@dataclass(frozen=True, slots=True)
class AddNormFusion:
    """A place where add and norm may be fused with the products around them.

    product: the branch's last one. next_product: the next branch's first one, with its activation if it has one.
    """

    product: Linear
    norm: ResidualRMSNorm
    next_product: Callable[[Normed], Activated]
