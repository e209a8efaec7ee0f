"""GET /v1/responses/{id}/input_items: the items of a conversation as OpenAI lists them, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.errors import InvalidRequest
from service.storage.listing import PageQuery

MOST_OF_A_PAGE = 100
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "compaction": "cmp",
}


def listed_items(items: Sequence[Mapping[str, Any]], response_id: str) -> list[dict[str, Any]]:
    """Each item with what a client may have left out: an id (the same every time), its type, its status."""
    suffix = response_id.partition("_")[2]
    return [_listed(item, f"{suffix}{index:04x}") for index, item in enumerate(items)]


def page_of(items: Sequence[Mapping[str, Any]], query: PageQuery) -> dict[str, Any]:
    ordered = list(items) if query.is_ascending else list(reversed(items))
    start = 0
    if query.after is not None:
        ids = [item["id"] for item in ordered]
        if query.after not in ids:
            raise InvalidRequest("after must be the id of an input item of this response.", param="after")
        start = ids.index(query.after) + 1
    page = ordered[start : start + query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + query.limit < len(ordered),
    }


def _listed(item: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    own = {name: value for name, value in item.items() if value is not None}
    listed = {**own, "type": kind, "id": own.get("id") or f"{_PREFIXES.get(kind, 'item')}_{suffix}"}
    listed["status"] = own.get("status") or "completed"
    for name in ("content", "output"):
        if name in own and not (name == "output" and isinstance(own[name], str)):
            listed[name] = _listed_parts(own[name], kind, own.get("role"))
    return listed


def _listed_parts(content: Any, kind: str, role: object) -> list[dict[str, Any]]:
    """A plain string becomes one part. The type of a part says whether it is input or output."""
    said = "output_text" if role == "assistant" else "input_text"
    parts = [{"type": said, "text": content}] if isinstance(content, str) else content
    if kind == "reasoning":
        return [dict(part) for part in parts]
    own: dict[str, Any] = {"annotations": []} if role == "assistant" else {}
    return [
        {**own, **part, "type": said if part["type"] in ("text", "input_text", "output_text") else part["type"]}
        for part in parts
    ]
