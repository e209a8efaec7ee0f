"""The version of Headrace that runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def distribution_version() -> str:
    """The installed version; `unknown` in a source tree that was not installed."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
