"""Where a branch (attention or MLP) is added to the residual stream: its last product, the norm of the sum, and the
next branch's first product.

Unfused these are a kernel each, and one more if an activation follows. For few rows on a GPU two are enough. An RMS
norm divides a row by a number that is not known before the whole row is, but the row's product with the next weight can
be divided instead. So the first kernel multiplies, adds, and sums the squares (kernels/linear_add_norm.py); the second
multiplies, then divides (kernels/norm_linear.py).
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

    product: the branch's last. next_product: the next branch's first, and its activation if it has one.
    """

    product: Linear
    norm: ResidualRMSNorm
    next_product: Callable[[Normed], Activated]
