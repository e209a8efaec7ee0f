"""Ids of tool calls, which the client says back with their results."""

from __future__ import annotations

import secrets

from service.text.tool_calls import ToolStyle


def new_call_id(style: ToolStyle | None, prefix: str = "call_") -> str:
    """prefix: as the API's clients know it. Mistral's templates take no ids but nine letters and digits."""
    return secrets.token_hex(5)[:9] if style is ToolStyle.MISTRAL else f"{prefix}{secrets.token_hex(12)}"
