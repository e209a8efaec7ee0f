"""Typed access to the fields of a model folder's JSON files. Errors name the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from service.errors import ModelLoadError


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON object from a file of the model folder. Raises ModelLoadError naming the file."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path.name}: is not in the model folder") from None
    except (OSError, ValueError) as fault:
        raise ModelLoadError(f"{path.name}: cannot be read: {fault}") from fault
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{path.name}: is not a JSON object")
    return fields


def token_ids(value: object) -> frozenset[int]:
    """The ids in `value`: one id or a list of ids, as Hugging Face writes them. Empty for anything else."""
    values = value if isinstance(value, list) else [value]
    return frozenset(v for v in values if isinstance(v, int) and not isinstance(v, bool))


class ConfigFields:
    """A JSON object's fields; null counts as missing. Every method raises ModelLoadError.

    source: names the file, or the file and the object in it, in errors.
    """

    def __init__(self, fields: Mapping[str, object], source: str) -> None:
        self._fields = fields
        self.source = source

    def __contains__(self, name: str) -> bool:
        """Whether the field is present, even if it is null."""
        return name in self._fields

    def get(self, name: str) -> object:
        """The value as it is written; None if the field is missing."""
        return self._fields.get(name)

    def number(self, name: str, default: float | None = None) -> float:
        """Finite and above 0."""
        value = self._fields.get(name)
        if value is None:
            if default is None:
                raise ModelLoadError(f"{self.source}: {name} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelLoadError(f"{self.source}: {name} must be a positive number, not {value!r}")
        return float(value)

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self.number(name, default)
        if value != int(value):
            raise ModelLoadError(f"{self.source}: {name} must be a whole number, not {value!r}")
        return int(value)

    def count(self, name: str, default: int) -> int:
        """As `size`, but may be 0."""
        return 0 if self._fields.get(name) == 0 else self.size(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelLoadError(f"{self.source}: {name} must be true or false, not {value!r}")
        return value

    def require(self, name: str, served: bool) -> None:
        """Refuse every value of a flag except the supported one, which is also its default."""
        if self.flag(name, served) is not served:
            raise ModelLoadError(f"{self.source}: {name} {self._fields[name]!r} is not supported, only {served}")
