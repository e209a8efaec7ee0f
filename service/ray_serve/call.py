"""An HTTP call on its way from the ingress to a replica, and the head of its answer on the way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

MAX_PROMPT_CHARS = 16_384
"""Of a prompt, for the router: its tree has to hold them, and a longer common prefix changes no choice."""

MIN_PROMPT_CHARS = 256
"""A shorter prompt is not routed by prefix: a quarter of it, which the router compares, would be no more than a block
of the cache."""

MAX_PARSED_BYTES = 256 * 1024
"""A longer body would hold up the event loop; its first bytes stand for its prompt."""

_BEGINNING = ("system", "instructions", "messages", "prompt", "input")
"""Fields of all APIs that make up the prompt, in the order of their text in it."""

_MAX_DEPTH = 6
"""The fields, their messages, their parts, blocks in these: there is no text deeper than this."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"content-length",  # set again by whoever sends the body again
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """target: path and query. prompt: the text by whose prefix Ray's router chooses; None: by load only."""

    method: str
    target: str
    headers: Headers
    body: bytes
    prompt: str | None


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The head of an answer, before the pieces of the body."""

    status: int
    headers: Headers


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are not hop-by-hop (RFC 9110, section 7.6.1)."""
    return tuple((name, value) for name, value in headers if name.lower() not in _HOP_BY_HOP)


def prompt_of(body: bytes) -> str | None:
    """The text of a request's prompt, as much as the router needs; None if there is none, or it is too short to matter.

    Never raises: an invalid body is left to the replica.
    """
    if len(body) > MAX_PARSED_BYTES:
        return body[:MAX_PROMPT_CHARS].decode(errors="replace")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    texts: list[str] = []
    num_chars = 0
    for text in _texts([fields.get(name) for name in _BEGINNING], _MAX_DEPTH):
        texts.append(text)
        num_chars += len(text)
        if num_chars >= MAX_PROMPT_CHARS:
            break
    return "\n".join(texts)[:MAX_PROMPT_CHARS] if num_chars >= MIN_PROMPT_CHARS else None


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Texts, token ids, and the text of messages and their parts, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, list) and depth:
        for one in value:
            yield from _texts(one, depth - 1)
    elif isinstance(value, dict) and depth:
        yield from _texts(value.get("content") or value.get("text"), depth - 1)
