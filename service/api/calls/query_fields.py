"""Flags and numbers in a query string."""

from __future__ import annotations

from starlette.requests import Request

from service.errors import InvalidRequest

_FLAGS = {"": True, "1": True, "true": True, "0": False, "false": False}
_MAX_DIGITS = 9


def flag_of(http: Request, name: str) -> bool | None:
    """None: it is not given."""
    asked = http.query_params.get(name)
    if asked is None:
        return None
    if asked.lower() not in _FLAGS:
        raise InvalidRequest(f"{name} must be true or false.", param=name)
    return _FLAGS[asked.lower()]


def number_of(http: Request, name: str) -> int | None:
    """At least 0. None: it is not given."""
    asked = http.query_params.get(name)
    if asked is None:
        return None
    if not (asked.isascii() and asked.isdigit() and len(asked) <= _MAX_DIGITS):
        raise InvalidRequest(f"{name} must be an integer of at least 0, with at most {_MAX_DIGITS} digits.", param=name)
    return int(asked)
