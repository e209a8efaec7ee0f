"""Replaces transformers' linears by ours; those that read the same rows become one matrix.

So q, k and v, gate and up, or whatever else reads the same input is one product, as in our own model files, and can use
all methods of our linears.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from service.layers.gated_mlp import GatedMlp
from service.layers.layer import Layer
from service.layers.linear import Linear, NamedLinear
from service.layers.tensor_parallel import TensorParallel
from service.models.transformers_backend.fusions import GatedRows, gated_mlp_of


class WholeLinear(Layer):
    """x [..., in_features] -> [..., out_features]. Replaces one linear of transformers.

    kept: this rank's inputs, if it has only some; x may have these or all.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear
        self.kept: range | None = None
        self.gathering: TensorParallel | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is not None and x.shape[-1] != len(self.kept):
            x = x[..., self.kept.start : self.kept.stop]
        product = self.linear(x.flatten(0, -2))
        if self.gathering is not None:
            (product,) = _gathered(product, self.linear.out_features, self.gathering)
        return product.unflatten(0, x.shape[:-1])


class _SharedProduct:
    """The merged product for the last x that was asked for, kept until every part has been taken.

    gathering: the ranks that each have some of every part's outputs, if all outputs are wanted on each.
    """

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.gathering: TensorParallel | None = None
        self._x: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()
        self._num_left = 0

    def part(self, x: Tensor, index: int) -> Tensor:
        if x is not self._x:
            product, sizes = self._linear(x.flatten(0, -2)), self._linear.out_features
            parts = product.split(sizes, dim=-1)
            if self.gathering is not None:
                parts = _gathered(product, sizes, self.gathering)
            self._x, self._num_left = x, len(sizes)
            self._parts = tuple(part.unflatten(0, x.shape[:-1]) for part in parts)
        part = self._parts[index]
        self._num_left -= 1
        if self._num_left == 0:
            self._x, self._parts = None, ()
        return part


class LinearPart(Layer):
    """One of several linears that read the same rows: a slice of their product, which the first call computes."""

    def __init__(self, linear: Linear, product: _SharedProduct, index: int) -> None:
        super().__init__()
        self.linear = linear
        self.product = product
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return self.product.part(x, self.index)


def parts_of_one_product(modules: Sequence[nn.Module]) -> list[int] | None:
    """Where each part of the product is among `modules`, in the parts' order. None: these are not all parts of one."""
    indices = {module.index: place for place, module in enumerate(modules) if isinstance(module, LinearPart)}
    linears = {id(module.linear): module.linear for module in modules if isinstance(module, LinearPart)}
    if len(linears) != 1 or len(indices) != len(modules):
        return None
    (linear,) = linears.values()
    return [indices[index] for index in range(len(modules))] if len(linear.out_features) == len(modules) else None


def gather_outputs(module: WholeLinear | LinearPart, parallel: TensorParallel) -> None:
    """Each rank has some of the outputs of this linear, and of those it is merged with: return all of them on every
    rank."""
    whose = module if isinstance(module, WholeLinear) else module.product
    whose.gathering = parallel


def _gathered(product: Tensor, sizes: Sequence[int], parallel: TensorParallel) -> tuple[Tensor, ...]:
    """product [T, sum(sizes)]: this rank's share of each part -> each part whole, [T, its size over all ranks]."""
    of_ranks = parallel.all_gather(product).movedim(0, 1)
    return tuple(part.flatten(1) for part in of_ranks.split(list(sizes), dim=2))


def use_our_linears(base: nn.Module, groups: Sequence[Sequence[str]]) -> list[NamedLinear]:
    """Replace these linears of a model on the meta device, and the gated MLPs that consist of them. Returns ours with
    their names below `base`."""
    mlps = _gated_mlps(base, groups)
    ours = []
    for group in groups:
        path = _parent(group[0])
        if path in mlps:
            linear = mlps[path].down if len(group) == 1 else mlps[path].gate_up
            ours.append(NamedLinear(tuple(group), linear, reads_rows=False))
            continue
        for names in _mergeable(base, group):
            ours.append(_replace(base, names))
    for path, mlp in mlps.items():
        setattr(base.get_submodule(_parent(path)), path.rpartition(".")[2], GatedRows(mlp))
    return ours


def _gated_mlps(base: nn.Module, groups: Sequence[Sequence[str]]) -> dict[str, GatedMlp]:
    """By path of the MLP. Gate and up must read the same input, and with down be the module's only linears."""
    by_parent: dict[str, list[Sequence[str]]] = {}
    for group in groups:
        by_parent.setdefault(_parent(group[0]), []).append(group)
    mlps = {}
    for path, of_parent in by_parent.items():
        if of_parent == [[f"{path}.gate_proj", f"{path}.up_proj"], [f"{path}.down_proj"]]:
            mlp = gated_mlp_of(base.get_submodule(path))
            if mlp is not None:
                mlps[path] = mlp
    return mlps


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _mergeable(base: nn.Module, group: Sequence[str]) -> list[list[str]]:
    """Split by whether there is a bias: a merged linear has one for all parts or for none."""
    by_bias: dict[bool, list[str]] = {}
    for name in group:
        by_bias.setdefault(_linear(base, name).bias is not None, []).append(name)
    return list(by_bias.values())


def _replace(base: nn.Module, names: Sequence[str]) -> NamedLinear:
    parts = [_linear(base, name) for name in names]
    merged = Linear(parts[0].in_features, *(part.out_features for part in parts), bias=parts[0].bias is not None)
    product = _SharedProduct(merged)
    for index, name in enumerate(names):
        parent, _, child = name.rpartition(".")
        part = WholeLinear(merged) if len(names) == 1 else LinearPart(merged, product, index)
        setattr(base.get_submodule(parent), child, part)
    return NamedLinear(tuple(names), merged, reads_rows=False)


def _linear(base: nn.Module, name: str) -> nn.Linear:
    module = base.get_submodule(name)
    assert isinstance(module, nn.Linear)
    return module
