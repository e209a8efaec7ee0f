"""Settings that are lists: comma-separated on the command line, in the environment and in the file alike."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def _split(value: object) -> object:
    if not isinstance(value, str | list | tuple):
        return value
    parts = value.split(",") if isinstance(value, str) else [p for v in value for p in str(v).split(",")]
    stripped = tuple(part.strip() for part in parts if part.strip())
    if not stripped and value not in ((), []):
        raise ValueError("is empty; leave it out instead")
    return stripped


def _check_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    if any(not entry.rpartition(":")[2] for entry in keys):
        raise ValueError("an entry has no key; write KEY or NAME:KEY")
    return keys


def _check_modules(modules: tuple[str, ...]) -> tuple[str, ...]:
    names = [module.partition("=")[0] for module in modules]
    if wrong := [module for module in modules if not all(module.partition("="))]:
        raise ValueError(f"{wrong[0]!r} is not NAME=FOLDER")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the name {twice[0]!r} is given twice")
    return modules


def _check_hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [name for name in names if name != "*" and not _HOST_NAME.fullmatch(name)]:
        raise ValueError(f"{wrong[0]!r} is not a host name without scheme and port, nor *.NAME")
    return names


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Keys = Annotated[Names, AfterValidator(_check_keys)]
"""KEY or NAME:KEY."""

AdapterFolders = Annotated[Names, AfterValidator(_check_modules)]
"""NAME=FOLDER, each name once."""

HostNames = Annotated[Names, AfterValidator(_check_hosts)]
"""Without scheme and port; *.NAME, or *."""
