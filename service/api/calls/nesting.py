"""How deep a body may be nested: no deeper than what is made of it can be written.

orjson reads 1024 levels and writes 254, so whatever shows a client's own values again would fail by deeper ones.
"""

from __future__ import annotations

from typing import Any

from service.errors import InvalidRequest

MOST_DEEP = 200
"""Of a field. The rest of what orjson writes is for what stands around it."""
_NAME_CHARACTERS = 64


def check_nesting(body: object) -> None:
    """Refuse a field that is nested deeper. What is no object is left to others."""
    if isinstance(body, dict):
        for name, value in body.items():
            if _is_deeper(value):
                shown = name[:_NAME_CHARACTERS]
                raise InvalidRequest(f"{shown} may be nested at most {MOST_DEEP} levels deep.", param=shown)


def may_be_deeper(body: bytes | bytearray) -> bool:
    """Whether this JSON text has as many brackets as that needs: most have not, and need no look at each value."""
    return body.count(b"[") + body.count(b"{") > MOST_DEEP


def _is_deeper(value: Any) -> bool:
    """Each value is looked at once."""
    level = [value]
    for _ in range(MOST_DEEP + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [each for holder in level for each in (holder.values() if isinstance(holder, dict) else holder)]
    return True
