"""The file of API keys, one per line, so that they are neither in the process list nor in the environment."""

from __future__ import annotations

import re
from pathlib import Path

from service.errors import ConfigError

_MAX_BYTES = 1024 * 1024
_KEY = re.compile(r"[!-~]+")
"""The characters that a header can carry: printable ASCII without spaces."""


def read_api_keys(path: Path, setting: str) -> tuple[str, ...]:
    """The entries, each KEY or NAME:KEY. Empty lines and lines that begin with # are skipped. setting: its name, for
    messages.

    ConfigError names the line and never shows its content.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as fault:
        raise ConfigError(f"{setting}: {path} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} is not text in UTF-8") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{setting}: {path} has more than {_MAX_BYTES} bytes")
    line_of: dict[str, int] = {}
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        key = entry.rpartition(":")[2]
        if not _KEY.fullmatch(key):
            raise ConfigError(f"{setting}: line {number} is not KEY or NAME:KEY of printable ASCII without spaces")
        if key in line_of:
            raise ConfigError(f"{setting}: line {number} has the key of line {line_of[key]}")
        line_of[key] = number
        entries.append(entry)
    if not entries:
        raise ConfigError(f"{setting}: {path} holds no key")
    return tuple(entries)
