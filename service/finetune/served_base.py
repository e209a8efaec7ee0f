"""The model that jobs are trained on, as they know it before anything is loaded for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedBase:
    """name: as it is served. weights: their digest. linears: last parts of the names of the linear layers that may get
    an adapter. max_rank: that is served. max_length: tokens that an example may have; usual_length: unless a job says.
    refusal: why this model cannot be trained; None: it can."""

    name: str
    weights: str
    hidden_size: int
    linears: frozenset[str]
    max_rank: int
    max_length: int
    usual_length: int
    refusal: str | None = None
