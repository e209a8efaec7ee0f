"""A body -> its wire shape, or a refusal in our words that says what does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service.errors import InvalidRequest
from service.protocol.generation import WireRequest

Wire = TypeVar("Wire", bound=WireRequest)

_EXPECTED = {
    "prompt": "must be a string, a list of strings, a list of token ids or a list of lists of token ids",
    "stop": "must be a string or a list of strings",
    "content": "must be a string or a list of content parts",
    "system": "must be a string or a list of text blocks",
    "early_stopping": 'must be true, false or "never"',
}
"""Used for fields that may have several types, where pydantic would report on each type."""
_MAX_NAME = 64
"""Characters of a client's own key (logit_bias) that a refusal repeats."""


def parse(shape: type[Wire], value: Mapping[str, Any]) -> Wire:
    """The body in its wire shape; InvalidRequest naming the first field that does not fit."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise _refusal(details) from error


def _refusal(details: Sequence[ErrorDetails]) -> InvalidRequest:
    """The refusal for pydantic's findings: the first field at fault, at its deepest place."""
    same_field = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]
    detail = max(same_field, key=lambda each: len(each["loc"]))
    path, has_several_types = _field_path(detail["loc"])
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:_MAX_NAME]}" for part in path).lstrip(".")
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    if detail["type"] == "missing":
        return InvalidRequest(f"{param} is required.", param=param, code="missing_required_parameter")
    if has_several_types and name in _EXPECTED:
        return InvalidRequest(f"{param} {_EXPECTED[name]}.", param=param)
    return InvalidRequest(f"{param}: {detail['msg']}.", param=param)


def _field_path(location: tuple[int | str, ...]) -> tuple[tuple[int | str, ...], bool]:
    """The path of the field, without pydantic's names for the members of a union; and whether it ends in a union."""
    members = [index for index, part in enumerate(location) if _names_a_type(part)]
    if not members:
        return location, False
    if any(isinstance(part, str) for part in location[members[-1] + 1 :]):
        return tuple(part for part in location if not _names_a_type(part)), False
    return location[: members[0]], True


def _names_a_type(part: int | str) -> bool:
    return isinstance(part, str) and (part in ("str", "int", "bool") or "[" in part)
