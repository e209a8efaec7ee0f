"""Formats in JSON schemas that tell a reader something and rule out no text: left out, so that no schema is refused for
them."""

from __future__ import annotations

from typing import Any

_OF_ANY_TEXT = frozenset({"password", "binary", "path", "file-path", "directory-path"})
"""OpenAPI's, and those that pydantic writes for SecretStr, bytes and paths."""
_VALUES = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose value is no schema."""


def without_annotations(schema: Any) -> Any:
    """The schema without such formats; the given one stays as it is."""
    if isinstance(schema, list):
        return [without_annotations(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _VALUES else without_annotations(value)
        for key, value in schema.items()
        if not (key == "format" and isinstance(value, str) and value in _OF_ANY_TEXT)
    }
