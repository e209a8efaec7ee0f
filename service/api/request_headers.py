"""One header of a request, found without an object for all of them."""

from __future__ import annotations

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> str:
    """The first header of this name, in lower case as servers give them; empty if there is none."""
    for each, value in scope["headers"]:
        if each == name:
            text: str = value.decode("latin-1")
            return text
    return ""
