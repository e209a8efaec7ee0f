"""How tensor-parallel ranks divide a transformers model: by the plan in its configuration (`base_model_tp_plan`), and
where that says nothing, by the names that most families have.

What is not divided is whole on every rank: embeddings, norms, routers, and linears with other names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from torch import nn
from transformers.configuration_utils import PreTrainedConfig

from service.layers.gated_mlp import GatedMlp
from service.layers.linear import Linear, NamedLinear
from service.layers.shard import Shard, even_share, kv_head_share
from service.layers.tensor_parallel import TensorParallel
from service.models.transformers_backend.attention import RankHeads
from service.models.transformers_backend.experts import inner_size, is_computed_here, shard_experts
from service.models.transformers_backend.fusions import GatedRows
from service.models.transformers_backend.linears import LinearPart, WholeLinear, gather_outputs

Way = Literal["outputs", "gathered", "inputs"]
""""outputs": a rank has some of the outputs. "gathered": and then all ranks get all of them. "inputs": a rank has some
of the inputs, and the products are summed."""

_WAYS: Mapping[str, Way] = {
    "colwise": "outputs",
    "local_colwise": "outputs",
    "colwise_rep": "gathered",
    "colwise_gather_output": "gathered",
    "rowwise": "inputs",
    "local_rowwise": "inputs",
    "rowwise_rep": "inputs",
    "rowwise_split_input": "inputs",
}
"""transformers' names, of several versions. All others mean whole on every rank."""

_USUAL: Mapping[str, Way] = {
    "self_attn.q_proj": "outputs",
    "self_attn.k_proj": "outputs",
    "self_attn.v_proj": "outputs",
    "self_attn.q_b_proj": "outputs",
    "self_attn.kv_b_proj": "outputs",
    "self_attn.o_proj": "inputs",
    "mlp.gate_proj": "outputs",
    "mlp.up_proj": "outputs",
    "mlp.down_proj": "inputs",
}
_OF_KEYS = ("k_proj", "v_proj")


class Heads(NamedTuple):
    """Numbers of heads over all ranks: of queries, and of keys and values."""

    num_queries: int
    num_keys: int

    def of_rank(self, parallel: TensorParallel) -> RankHeads:
        queries, keys = even_share(self.num_queries, parallel), kv_head_share(self.num_keys, parallel)
        return RankHeads(queries, self.num_queries, keys, self.num_keys)


class Division:
    """config: of the text part. linears: with their names below `base`."""

    def __init__(self, base: nn.Module, config: PreTrainedConfig, linears: Sequence[NamedLinear], heads: Heads) -> None:
        self._base = base
        self._plan = _patterns(getattr(config, "base_model_tp_plan", None) or {})
        self._linears = linears
        self._heads = heads

    def sizes(self) -> Iterator[tuple[str, int]]:
        """The sizes that are divided evenly, except heads, by names without layer numbers; each once."""
        found: dict[tuple[str, int], None] = {}
        for names, linear, _ in self._linears:
            for name, size, way in zip(names, linear.out_features, self._ways(names), strict=True):
                if way is not None and not _is_of_keys(name, way):
                    found[re.sub(r"\.\d+\.", ".*.", name), linear.in_features if way == "inputs" else size] = None
        for path, module in self._experts():
            found[re.sub(r"\.\d+\.", ".*.", path), inner_size(module)] = None
        return iter(found)

    def divides_heads(self, projections: Sequence[str], output: str) -> bool:
        """Whether each rank gets some heads of attention, and only these."""
        return self._ways(projections) == ["outputs"] * len(projections) and self._way(output) == "inputs"

    def carry_out(self, parallel: TensorParallel) -> dict[str, Shard]:
        """Make each module this rank's part; called before there is memory. Returns the parts of the parameters that
        are not in a linear, by their names below `base`."""
        for named in self._linears:
            self._divide(named, parallel)
        return {
            f"{path}.{name}": shard
            for path, module in self._experts()
            for name, shard in shard_experts(module, parallel).items()
        }

    def _divide(self, named: NamedLinear, parallel: TensorParallel) -> None:
        names, linear, _ = named
        ways = self._ways(names)
        if ways == ["inputs"]:
            kept = even_share(linear.in_features, parallel)
            linear.shard_inputs(kept, parallel)
            module = self._base.get_submodule(names[0]) if self._stands_alone(names[0]) else None
            if isinstance(module, WholeLinear):
                module.kept = kept
        elif any(way is not None for way in ways):
            is_gathered = all(way == "gathered" for way in ways)
            linear.shard_outputs(*self._outputs(names, linear, ways, parallel, is_gathered=is_gathered))
            if is_gathered:
                module = self._base.get_submodule(names[0])
                assert isinstance(module, WholeLinear | LinearPart)
                gather_outputs(module, parallel)

    def _outputs(
        self,
        names: Sequence[str],
        linear: Linear,
        ways: Sequence[Way | None],
        parallel: TensorParallel,
        *,
        is_gathered: bool,
    ) -> Iterator[range]:
        """The outputs of the merged product that this rank keeps. A "gathered" part stays whole if other parts are not
        gathered."""
        first = 0
        for name, size, way in zip(names, linear.out_features, ways, strict=True):
            kept = range(size)
            if _is_of_keys(name, way):
                heads, dim = kv_head_share(self._heads.num_keys, parallel), size // self._heads.num_keys
                kept = range(heads.start * dim, heads.stop * dim)
            elif way == "outputs" or is_gathered:
                kept = even_share(size, parallel)
            yield range(first + kept.start, first + kept.stop)
            first += size

    def _ways(self, names: Sequence[str]) -> list[Way | None]:
        return [self._way(name) for name in names]

    def _way(self, name: str) -> Way | None:
        for pattern, style in self._plan.items():
            if pattern.search(name):
                return _WAYS.get(style)
        return next((way for end, way in _USUAL.items() if name.endswith(f".{end}")), None)

    def _stands_alone(self, name: str) -> bool:
        """Whether the linear is not part of one of our gated MLPs."""
        parent = self._base.get_submodule(name.rpartition(".")[0])
        return not isinstance(parent, GatedRows | GatedMlp)

    def _experts(self) -> list[tuple[str, nn.Module]]:
        return [(path, module) for path, module in self._base.named_modules() if is_computed_here(module)]


def _patterns(plan: Mapping[str, str]) -> dict[re.Pattern[str], str]:
    """In a model with vision the names have a longer prefix."""
    return {
        re.compile(rf"(?:^|\.){re.escape(name).replace(re.escape('*'), '[0-9]+')}$"): style
        for name, style in plan.items()
    }


def _is_of_keys(name: str, way: Way | None) -> bool:
    return way == "outputs" and name.rpartition(".")[2] in _OF_KEYS
