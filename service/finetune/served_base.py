"""Facts about the model that jobs are trained on, known before a job loads anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedBase:
    """names: under which it is served; the first is part of the names of fine-tuned models. weights: their digest.
    linears: last parts of the names of linear layers that may get an adapter. max_rank: highest rank that is served.
    max_length: the most tokens of an example; usual_length: the default limit. packed_length: the most tokens of a
    micro-batch with several examples, so that requests have room beside it; None: usual_length. refusal: why this model
    cannot be trained; None: it can."""

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
