from __future__ import annotations

import httpx
import pytest

from tests.api.wire import CHAT, COMPLETIONS, completion, error_of

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"null",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"model": "tiny/model", "prompt": "x",}',
        b"{'model': 'tiny/model'}",
    ],
    ids=lambda body: repr(body[:20]),
)
@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_what_is_not_a_json_object_is_refused(http: httpx.Client, route: str, body: bytes) -> None:
    response = http.post(route, content=body, headers=JSON)
    assert response.status_code == 400
    assert len(error_of(response)["message"]) < 300


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_content_types_that_are_json(http: httpx.Client, content_type: str) -> None:
    body = httpx.Request("POST", "http://x", json=completion()).content
    assert http.post(COMPLETIONS, content=body, headers={"content-type": content_type}).status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_content_types_that_are_not(http: httpx.Client, content_type: str) -> None:
    body = httpx.Request("POST", "http://x", json=completion()).content
    response = http.post(COMPLETIONS, content=body, headers={"content-type": content_type})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br", 415), ("identity", 200), ("", 200)])
def test_a_body_may_not_be_compressed(http: httpx.Client, encoding: str, status: int) -> None:
    response = http.post(COMPLETIONS, json=completion(), headers={"content-encoding": encoding})
    assert response.status_code == status
    if status != 200:
        assert "Content-Encoding" in error_of(response)["message"]
