"""The arguments of a call, as the model wrote them -> an object, even if they are cut off or not JSON."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic_core import from_json

UNREADABLE = "INVALID_JSON"
"""The key under which Anthropic's documentation puts arguments that cannot be parsed."""


def arguments_object(text: str, *, keeps_cut_text: bool) -> dict[str, Any]:
    """The object that the arguments are. Of arguments that are cut off, the part that there is; arguments that are not
    an object are put under `UNREADABLE`.

    Empty arguments and null are an object without fields. keeps_cut_text: a string that is cut off counts as far as it
    goes; else it is left out, as clients that read a stream do. Any thread; never raises.
    """
    arguments = _parsed(text.strip() or "{}", "trailing-strings" if keeps_cut_text else "on")
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else {UNREADABLE: text}


def _parsed(text: str, partial: Literal["on", "trailing-strings"]) -> object:
    """The text itself if it is not JSON, nor the beginning of any."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return from_json(text, allow_partial=partial)
    except ValueError:
        return text
