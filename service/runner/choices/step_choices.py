"""All choices for a model's steps, as one value that can be kept and given to another process."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from service.layers.linear_method import LinearChoice
from service.runner.choices.made_for import MadeFor
from service.runner.graph_sizes import GraphSize


@dataclass(frozen=True, slots=True)
class StepChoices:
    """linears: for each shape of weights (`Projection.shape_name`), how to multiply by them. graphs: the step sizes
    that have a CUDA graph, in the order of capture; empty on a CPU.

    Promise: two processes with equal choices and settings, on devices that `made_for` names, compute equal steps to the
    same bits, once both have captured all of `graphs`. Until then a step runs in a wider graph or kernel by kernel and
    may round differently; so a service that was given a file of choices captures all graphs before the first request
    (service/runner/load.py). Not promised: that requests meet in the same steps, which depends on when they arrive and
    on how many blocks fit into memory; and that no step is halved because memory runs out.
    """

    version: Literal[1] = field(default=1, kw_only=True)
    made_for: MadeFor
    linears: Mapping[str, LinearChoice]
    graphs: tuple[GraphSize, ...]

    def __post_init__(self) -> None:
        if self.linears.keys() != self.made_for.weights.keys():
            raise ValueError("linears and made_for.weights do not have the same shapes")

    def to_json(self) -> str:
        return _ADAPTER.dump_json(self, indent=2).decode() + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> StepChoices:
        """Raises ValueError naming the places of its errors."""
        try:
            choices = _ADAPTER.validate_json(text, strict=True)
        except ValidationError as faults:
            raise ValueError("; ".join(_told(fault) for fault in faults.errors()[:_MAX_TOLD])) from None
        for unknown in _only_in(json.loads(text), json.loads(choices.to_json())):
            raise ValueError(f"{unknown}: unknown field")
        return choices

    def __str__(self) -> str:
        by_choice = defaultdict[str, list[str]](list)
        for shape, choice in self.linears.items():
            by_choice[str(choice)].append(shape)
        weights = "; ".join(f"{', '.join(shapes)}: {choice}" for choice, shapes in by_choice.items())
        graphs = f"; {len(self.graphs)} sizes of CUDA graphs" if self.graphs else ""
        return f"{self.made_for.dtype}; {weights}{graphs}"


_ADAPTER = TypeAdapter(StepChoices)
_MAX_TOLD = 3


def _told(fault: ErrorDetails) -> str:
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}" if place else fault["msg"]


def _only_in(written: Any, known: Any, place: str = "") -> Iterator[str]:
    """The fields of JSON objects that only `written` has."""
    if isinstance(written, dict):
        for name, value in written.items():
            if name in known:
                yield from _only_in(value, known[name], f"{place}{name}.")
            else:
                yield place + name
