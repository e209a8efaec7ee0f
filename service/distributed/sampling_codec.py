"""Sampling parameters as integers: a bit mask of the fields that differ from their defaults, then these fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from service.core.embedding import Pooling
from service.core.sampling_params import BeamParams, SamplingParams
from service.distributed.integers import IntegerReader, IntegerWriter


@dataclass(frozen=True, slots=True)
class _Field:
    write: Callable[[IntegerWriter, Any], None]
    read: Callable[[IntegerReader], Any]


def _write_pairs(to: IntegerWriter, pairs: tuple[tuple[int, float], ...]) -> None:
    to.many([token_id for token_id, _ in pairs])
    for _, addend in pairs:
        to.real(addend)


def _read_pairs(source: IntegerReader) -> tuple[tuple[int, float], ...]:
    return tuple((token_id, source.real()) for token_id in source.many())


def _write_rows(to: IntegerWriter, rows: tuple[tuple[int, ...], ...]) -> None:
    to.one(len(rows))
    for row in rows:
        to.many(row)


def _read_rows(source: IntegerReader) -> tuple[tuple[int, ...], ...]:
    return tuple(source.many() for _ in range(source.one()))


_STOPPING: tuple[Literal[False, True, "never"], ...] = (False, True, "never")


def _write_beam(to: IntegerWriter, beam: BeamParams) -> None:
    to.one(beam.width)
    to.real(beam.length_penalty)
    to.one(_STOPPING.index(beam.early_stopping))
    to.many(() if beam.num_logprobs is None else (beam.num_logprobs,))


def _read_beam(source: IntegerReader) -> BeamParams:
    width, length_penalty, early_stopping = source.one(), source.real(), _STOPPING[source.one()]
    num_logprobs = source.many()
    return BeamParams(width, length_penalty, early_stopping, num_logprobs[0] if num_logprobs else None)


_POOLINGS: tuple[Pooling, ...] = ("last", "mean")

_INTEGER = _Field(IntegerWriter.one, IntegerReader.one)
_REAL = _Field(IntegerWriter.real, IntegerReader.real)
_BOOLEAN = _Field(IntegerWriter.one, lambda source: bool(source.one()))

_BY_TYPE = {"int": _INTEGER, "int | None": _INTEGER, "float": _REAL, "bool": _BOOLEAN}
BY_NAME = {
    "stop_token_ids": _Field(lambda to, ids: to.many(sorted(ids)), lambda source: frozenset(source.many())),
    "logit_bias": _Field(_write_pairs, _read_pairs),
    "allowed_token_ids": _Field(IntegerWriter.many, IntegerReader.many),
    "bad_words": _Field(_write_rows, _read_rows),
    "logprob_token_ids": _Field(IntegerWriter.many, IntegerReader.many),
    "beam": _Field(_write_beam, _read_beam),
    "pooling": _Field(lambda to, pooling: to.one(_POOLINGS.index(pooling)), lambda source: _POOLINGS[source.one()]),
}

FIELDS = {field.name: BY_NAME.get(field.name) or _BY_TYPE[str(field.type)] for field in fields(SamplingParams)}
"""Every field of SamplingParams, in the same order on both sides. None is always the default, so it is never sent."""

_DEFAULTS = SamplingParams(max_tokens=0)


def write_sampling(to: IntegerWriter, sampling: SamplingParams) -> None:
    changed = [name for name in FIELDS if getattr(sampling, name) != getattr(_DEFAULTS, name)]
    to.one(sum(1 << place for place, name in enumerate(FIELDS) if name in changed))
    for name in changed:
        FIELDS[name].write(to, getattr(sampling, name))


def read_sampling(source: IntegerReader) -> SamplingParams:
    mask = source.one()
    given = {name: field.read(source) for place, (name, field) in enumerate(FIELDS.items()) if mask >> place & 1}
    return SamplingParams(**{"max_tokens": 0, **given})
