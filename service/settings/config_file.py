"""The YAML file of settings: read strictly, so that a typo in it is reported and never ignored."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

import yaml

from service.errors import ConfigError


def read_config_file(path: Path, known: Collection[str]) -> dict[str, object]:
    """Settings by name, as in the file; `max-num-seqs` and `max_num_seqs` are the same setting.

    known: all names. ConfigError if the file cannot be read, is not a mapping, or names an unknown setting, or one
    twice.
    """
    if not path.is_file():
        raise ConfigError(f"config: there is no file {path}")
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_PlainPairs)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise ConfigError(f"config: {path} cannot be read as YAML: {' '.join(str(fault).split())}") from None
    if value is None:
        return {}
    if not isinstance(value, _Pairs):
        raise ConfigError(f"config: {path} must be a mapping of settings to their values")
    settings: dict[str, object] = {}
    for key, setting in value:
        name = str(key).replace("-", "_")
        if name not in known:
            raise ConfigError(f"config: {key} is not a setting{did_you_mean(name, known)}")
        if name in settings:
            raise ConfigError(f"config: {key} is given twice")
        settings[name] = _plain(setting)
    return settings


def _plain(value: object) -> object:
    """A value with its mappings as dicts."""
    if isinstance(value, _Pairs):
        names = [key for key, _ in value]
        twice = next((key for key in names if names.count(key) > 1), None)
        if twice is not None:
            raise ConfigError(f"config: {twice} is given twice")
        return {key: _plain(each) for key, each in value}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def did_you_mean(name: str, known: Collection[str], prefix: str = "") -> str:
    """The end of a message about an unknown name; empty if no known name is close. prefix: of all names in the
    message."""
    close = difflib.get_close_matches(name.removeprefix(prefix), known, 1)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


class _Pairs(list[tuple[object, object]]):
    """A mapping with duplicate keys, which a dict would lose."""


class _PlainPairs(yaml.SafeLoader):
    """Loads only plain values, and mappings as `_Pairs`."""


def _pairs(loader: yaml.SafeLoader, node: yaml.MappingNode) -> _Pairs:
    return _Pairs(
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in node.value
    )


_PlainPairs.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _pairs)
