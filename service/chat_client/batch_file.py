"""The input file of `headrace batch`: lines in OpenAI's batch format, or bare requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class BatchFileError(ValueError):
    """What is wrong with the file, for the user."""


def endpoint_of(path: Path) -> str:
    """The endpoint of the first request. BatchFileError if there is none; OSError."""
    for number, value in _requests(path):
        return str(_wrapped(number, value)["url"])
    raise BatchFileError(f"{path} holds no requests")


def batch_lines(path: Path, model: str) -> Iterator[bytes]:
    """The lines as the server takes them. A bare request, with `messages` or a `prompt`, gets its line number as its
    id; a request without a model gets `model`."""
    for number, value in _requests(path):
        line = _wrapped(number, value)
        body = line.get("body")
        if isinstance(body, dict):
            line = {**line, "body": {"model": model, **body}}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _requests(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as fault:
                raise BatchFileError(f"line {number} of {path} is not JSON: {fault}") from None
            if not isinstance(value, dict):
                raise BatchFileError(f"line {number} of {path} is not a JSON object")
            yield number, value


def _wrapped(number: int, value: dict[str, Any]) -> dict[str, Any]:
    if "url" in value or "body" in value or "custom_id" in value:
        if not isinstance(value.get("url"), str):
            raise BatchFileError(f"line {number} has no url")
        return value
    for field, url in (("messages", CHAT), ("prompt", COMPLETIONS)):
        if field in value:
            return {"custom_id": str(number), "method": "POST", "url": url, "body": value}
    raise BatchFileError(f"line {number} is not a request: it has neither url and body, nor messages, nor a prompt")
