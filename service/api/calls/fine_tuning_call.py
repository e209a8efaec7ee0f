"""The body of POST /v1/fine_tuning/jobs -> a checked job; nothing checks it again."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from service.api.calls.token_checks import INT64_MAX, check_range, quote
from service.api.calls.unsupported import extra_fields
from service.api.calls.wire_parsing import parse
from service.errors import InvalidRequest, UnsupportedParameter
from service.finetune.hyperparameters import MAX_BATCH_SIZE, MAX_EPOCHS
from service.finetune.job import JobSpec
from service.finetune.served_base import ServedBase
from service.protocol.fine_tuning import CreateJob, SupervisedHyperparameters

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
_MAX_TARGETS = 64
_SUFFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SEED_BITS = 31
_METHOD = "method.supervised.hyperparameters"

Value = TypeVar("Value")


def checked_job(body: Mapping[str, Any], base: ServedBase) -> tuple[JobSpec, tuple[str, ...]]:
    """The job, and the names of unknown fields. Whether the model and the files exist is not checked here.

    Raises InvalidRequest naming the field.
    """
    _check_sizes(body)
    fields = parse(CreateJob, body)
    if base.refusal is not None:
        raise InvalidRequest(base.refusal, param="model")
    if fields.integrations:
        raise UnsupportedParameter("integrations are not supported.", param="integrations")
    _check_metadata(fields.metadata)
    if fields.suffix is not None and not _SUFFIX.fullmatch(fields.suffix):
        what = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
        raise InvalidRequest(f"suffix must be {what}.", param="suffix")
    check_range("seed", fields.seed, 0, INT64_MAX)
    param, given = _hyperparameters(fields)
    _check_hyperparameters(param, given, base)
    spec = JobSpec(
        model=fields.model,
        training_file=fields.training_file,
        validation_file=fields.validation_file,
        suffix=fields.suffix or "",
        seed=secrets.randbits(_SEED_BITS) if fields.seed is None else fields.seed,
        metadata=fields.metadata,
        num_epochs=_chosen(given.n_epochs),
        batch_size=_chosen(given.batch_size),
        learning_rate_multiplier=_chosen(given.learning_rate_multiplier),
        learning_rate=given.learning_rate,
        rank=given.rank,
        alpha=given.alpha,
        targets=None if given.target_modules is None else tuple(sorted(set(given.target_modules))),
        max_length=given.max_length,
    )
    return spec, _unknown_fields(fields)


def _check_sizes(body: Mapping[str, Any]) -> None:
    """Checked before the members are looked at."""
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata may hold at most {MAX_METADATA} pairs.", param="metadata")
    integrations = body.get("integrations")
    if isinstance(integrations, list) and integrations:
        raise UnsupportedParameter("integrations are not supported.", param="integrations")
    for of_method in (body.get("hyperparameters"), _at(body, "method", "supervised", "hyperparameters")):
        targets = _at(of_method, "target_modules")
        if isinstance(targets, list) and len(targets) > _MAX_TARGETS:
            raise InvalidRequest(f"target_modules may hold at most {_MAX_TARGETS} names.", param="target_modules")


def _at(value: object, *path: str) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _check_metadata(metadata: Mapping[str, str] | None) -> None:
    for key, value in (metadata or {}).items():
        if not 1 <= len(key) <= MAX_METADATA_KEY:
            raise InvalidRequest(f"metadata: a key has 1 to {MAX_METADATA_KEY} characters.", param="metadata")
        if len(value) > MAX_METADATA_VALUE:
            raise InvalidRequest(f"metadata: a value has at most {MAX_METADATA_VALUE} characters.", param="metadata")


def _hyperparameters(fields: CreateJob) -> tuple[str, SupervisedHyperparameters]:
    """The name of the field that has them (`method`, or the older one), and the hyperparameters."""
    method = fields.method
    if method is not None and method.type != "supervised":
        raise UnsupportedParameter(
            f"method.type {method.type!r} is not supported; 'supervised' is.", param="method.type"
        )
    of_method = None if method is None or method.supervised is None else method.supervised.hyperparameters
    if of_method is not None and fields.hyperparameters is not None:
        raise InvalidRequest(f"hyperparameters and {_METHOD} are the same; give one.", param="hyperparameters")
    if of_method is not None:
        return _METHOD, of_method
    return "hyperparameters", fields.hyperparameters or SupervisedHyperparameters()


def _check_hyperparameters(param: str, given: SupervisedHyperparameters, base: ServedBase) -> None:
    check_range(f"{param}.n_epochs", _chosen(given.n_epochs), 1, MAX_EPOCHS)
    check_range(f"{param}.batch_size", _chosen(given.batch_size), 1, MAX_BATCH_SIZE)
    check_range(f"{param}.rank", given.rank, 1, base.max_rank)
    check_range(f"{param}.max_length", given.max_length, 2, base.max_length)
    multiplier = _chosen(given.learning_rate_multiplier)
    for name, value in (
        ("learning_rate_multiplier", multiplier),
        ("learning_rate", given.learning_rate),
        ("alpha", given.alpha),
    ):
        if value is not None and not 0 < value < math.inf:
            raise InvalidRequest(f"{param}.{name} must be a number above 0.", param=f"{param}.{name}")
    if multiplier is not None and given.learning_rate is not None:
        raise InvalidRequest(
            f"{param}: learning_rate takes the place of learning_rate_multiplier; give one.",
            param=f"{param}.learning_rate",
        )
    for target in given.target_modules or ():
        if target not in base.linears:
            there_are = ", ".join(sorted(base.linears))
            name = f"{param}.target_modules"
            raise InvalidRequest(
                f"{name}: the model has no linear layer {quote(target)}; it has {there_are}.", param=name
            )
    if given.target_modules == []:
        raise InvalidRequest(f"{param}.target_modules is empty.", param=f"{param}.target_modules")


def _chosen(value: Value | Literal["auto"] | None) -> Value | None:
    return None if isinstance(value, str) else value


def _unknown_fields(fields: CreateJob) -> tuple[str, ...]:
    unknown = tuple(fields.model_extra or {})
    if fields.hyperparameters is not None:
        unknown += extra_fields("hyperparameters", fields.hyperparameters)
    if fields.method is not None:
        unknown += extra_fields("method", fields.method)
        if fields.method.supervised is not None:
            unknown += extra_fields("method.supervised", fields.method.supervised)
            if fields.method.supervised.hyperparameters is not None:
                unknown += extra_fields(_METHOD, fields.method.supervised.hyperparameters)
    return unknown
