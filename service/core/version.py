"""Which Headrace this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def distribution_version() -> str:
    """The installed version; `unknown` in a source tree that is not installed."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
