from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.text import long_text
from tests.api.running_server import running
from tests.api.wire import CHAT, COMPLETIONS, error_of


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x" * 9_000}, "prompt"),
        ("/tokenize", {"prompt": "x" * 9_000}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 9_000}]}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 9_000}]}, "messages"),
    ],
)
def test_a_text_that_is_too_long_to_be_tokenized_at_once_is_refused_by_name(
    path: str, body: dict[str, Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_text, "PIECE_CHARACTERS", 1000)
    monkeypatch.setattr(long_text, "MOST_UNDIVIDED", 4000)
    with running() as server:
        response = httpx.post(server.base_url + path, json={"model": "tiny/model", **body})
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert "no place to cut it" in error_of(response)["message"]
