"""The summary of a conversation as OpenAI's `compaction` item. Nothing is encrypted: `encrypted_content` is its text in
base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from service.errors import InvalidRequest

_MARK = b"headrace:"


def compaction_item(summary: str, suffix: str) -> Mapping[str, str]:
    """suffix: of the item's id."""
    content = base64.urlsafe_b64encode(_MARK + summary.encode()).decode()
    return {"id": f"cmp_{suffix}", "type": "compaction", "encrypted_content": content}


def summary_of(encrypted_content: str, param: str) -> str:
    """The summary that `compaction_item` was made from. InvalidRequest if the content was not made by it."""
    try:
        content = base64.b64decode(encrypted_content, altchars=b"-_", validate=True)
        if content.startswith(_MARK):
            return content.removeprefix(_MARK).decode()
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest(f"{param} was not made by this server's /v1/responses/compact.", param=param)
