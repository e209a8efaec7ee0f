"""Ids of tool calls; clients repeat them with the results."""

from __future__ import annotations

import secrets

from service.text.tool_calls import ToolStyle


def new_call_id(style: ToolStyle | None, prefix: str = "call_") -> str:
    """prefix: the API's. Mistral's templates accept only ids of nine letters and digits."""
    return secrets.token_hex(5)[:9] if style is ToolStyle.MISTRAL else f"{prefix}{secrets.token_hex(12)}"
