"""The arguments of a call, as the model wrote them -> an object, also where they are not whole or no JSON."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic_core import from_json

UNREADABLE = "INVALID_JSON"
"""Where Anthropic's documentation puts arguments that cannot be read."""


def arguments_object(text: str, *, keeps_cut_text: bool) -> dict[str, Any]:
    """Of whole arguments their object, of cut ones what there is of it; what is no object stands under `UNREADABLE`.

    No arguments at all, and null, are an object without fields. keeps_cut_text: a string that the cut is in counts as
    far as it goes; otherwise it is left out, as clients that read a stream do. Any thread; never raises.
    """
    arguments = _parsed(text.strip() or "{}", "trailing-strings" if keeps_cut_text else "on")
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else {UNREADABLE: text}


def _parsed(text: str, partial: Literal["on", "trailing-strings"]) -> object:
    """The text itself if it is no JSON, nor the beginning of any."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return from_json(text, allow_partial=partial)
    except ValueError:
        return text
