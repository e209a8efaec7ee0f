"""The model that jobs are trained on, as they know it before anything is loaded for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedBase:
    """names: as it is served; the first is in the names of what is made of it. weights: their digest. linears: last
    parts of the names of the linear layers that may get an adapter. max_rank: that is served. max_length: most tokens
    of an example; usual_length: unless a job says. packed_length: most tokens of a micro-batch of several examples, so
    that requests have room beside it; None: usual_length. refusal: why this model cannot be trained; None: it can."""

    names: tuple[str, ...]
    weights: str
    hidden_size: int
    linears: frozenset[str]
    max_rank: int
    max_length: int
    usual_length: int
    refusal: str | None = None
    packed_length: int | None = None

    @property
    def name(self) -> str:
        return self.names[0]
