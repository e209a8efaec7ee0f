"""Where a branch (attention or MLP) is added to the residual stream: its last product, the norm of the sum, and the
next branch's first product.

The plain way takes a kernel for each of the three, and one more if an activation follows. For few rows on a GPU two are
enough. An RMS norm divides a row by a number that is not known before the whole row is, but the row's product with the
next weight can be divided instead. So the first kernel multiplies, adds, and sums the squares
(kernels/linear_add_norm.py); the second multiplies, then divides (kernels/norm_linear.py). That is the deferred way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

from torch import Tensor

from kernels.linear_add_norm import linear_add_norm
from kernels.replay_timing import seconds_by_replay
from kernels.skinny_linear import FEW_ROWS, MAX_ROWS
from service.layers.few_rows import timed_rows
from service.layers.linear import Linear
from service.layers.linear_method import KernelMethod, Normed
from service.layers.rms_norm import ResidualRMSNorm

_TIMED_JOINTS = 8
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class StreamJoint:
    """product: the branch's last; behind: the next branch's first product, and its activation if it has one."""

    product: Linear
    norm: ResidualRMSNorm
    behind: Callable[[Normed], Tensor]

    def plain(self, x: Tensor, residual: Tensor) -> Tensor:
        """behind(norm(product(x) + residual)), by a kernel for each. The residual may be overwritten."""
        return self.behind(self.norm(self.product(x), residual)[0])

    def deferred(self, x: Tensor, residual: Tensor) -> Tensor:
        """The same by two kernels, for up to MAX_ROWS rows of a product that has a KernelMethod."""
        by = self.product.method
        assert isinstance(by, KernelMethod)
        norm = self.norm
        normed, _ = linear_add_norm(x, by.weight, by.bias, residual, norm.weight, norm.eps, by.arrivals)
        return self.behind(normed)


def launch_joint(joint: StreamJoint) -> None:
    """Launch what is timed: to have it compiled ahead."""
    for num_rows in timed_rows(joint.product.plain_weight):
        x, residual = _tensors(joint, num_rows)
        joint.plain(x, residual)
        joint.deferred(x, residual)


def deferred_rows(alike: Sequence[StreamJoint]) -> range:
    """The numbers of rows for which the deferred way takes less time, in joints of equal shapes.

    To be asked once the methods have all other `KernelRows`, since the plain way goes by them. Up to FEW_ROWS rows are
    decided at once, and all above together: so a row's result depends on nothing but whether there are more than
    FEW_ROWS. On a CPU, and for types that the kernels do not know, the plain way stays.
    """
    rows = timed_rows(alike[0].product.plain_weight)
    few = _gains(alike, [n for n in rows if n <= FEW_ROWS])
    many = _gains(alike, [n for n in rows if n > FEW_ROWS])
    return range(0 if few else FEW_ROWS + 1, (MAX_ROWS if many else FEW_ROWS) + 1) if rows else range(0)


def _gains(alike: Sequence[StreamJoint], rows: Sequence[int]) -> bool:
    """Whether the deferred way takes less time, summed over these numbers of rows."""
    plain, deferred = 0.0, 0.0
    timed = list(islice(cycle(alike), _TIMED_JOINTS))
    for num_rows in rows:
        x, residual = _tensors(alike[0], num_rows)
        plain += _seconds([partial(joint.plain, x, residual) for joint in timed])
        deferred += _seconds([partial(joint.deferred, x, residual) for joint in timed])
    return deferred < plain


def _tensors(joint: StreamJoint, num_rows: int) -> tuple[Tensor, Tensor]:
    """Random x and residual of a joint."""
    num_features, size = joint.product.plain_weight.shape
    residual, x = (joint.product.plain_weight.new_empty(num_rows, n).normal_() for n in (num_features, size))
    return x, residual


def _seconds(launches: Sequence[Callable[[], Tensor]]) -> float:
    """How long one takes, on the average."""
    launches[0]()
    return seconds_by_replay(launches, _ROUNDS)
