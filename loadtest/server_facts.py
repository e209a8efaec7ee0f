"""What a server says about itself before a run: its model, and the size of its vocabulary if that is known."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.direct_http import opened

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """`vocab_size` and `max_model_len` are None if the server does not report them."""

    model_id: str
    vocab_size: int | None
    max_model_len: int | None


def fetch_server_facts(base_url: str, headers: Mapping[str, str]) -> ServerFacts:
    """Read the first model of /v1/models.

    The vocabulary is the model card's `vocab_size`, else that of config.json in the card's `root`, if that is a folder
    readable on this machine. Raises ConnectionError if the server does not answer, ValueError if it lists no model.
    """
    request = urllib.request.Request(f"{base_url.rstrip('/')}/v1/models", headers=dict(headers))
    try:
        with opened(request, _TIMEOUT_S) as response:
            cards = json.load(response).get("data") or []
    except (urllib.error.URLError, TimeoutError, json.JSONDecodeError) as error:
        raise ConnectionError(f"{base_url}/v1/models: {error}") from error
    if not cards:
        raise ValueError(f"{base_url} lists no model; give one")
    card: dict[str, Any] = cards[0]
    return ServerFacts(card["id"], card.get("vocab_size") or vocab_size_of(card), card.get("max_model_len"))


def vocab_size_of(card: Mapping[str, Any]) -> int | None:
    """The vocabulary size in config.json of a model card's `root` (or id); None if it cannot be read."""
    config = Path(str(card.get("root") or card["id"])) / "config.json"
    if not config.is_file():
        return None
    content = json.loads(config.read_text(encoding="utf-8"))
    size = content.get("vocab_size") or content.get("text_config", {}).get("vocab_size")
    return int(size) if size else None
