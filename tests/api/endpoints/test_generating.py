from __future__ import annotations

import httpx
import pytest

from service.api.endpoints.generating import GENERATING, PATHS


def test_each_path_is_there_once() -> None:
    assert len(PATHS) == len(GENERATING)


@pytest.mark.parametrize("path", sorted(PATHS))
def test_each_is_routed(http: httpx.Client, path: str) -> None:
    assert http.post(path, json=[]).status_code == 400
    refused = http.patch(path)  # a GET of /v1/responses/compact asks for the response of that id
    assert refused.status_code == 405
    assert "POST" in refused.headers["allow"].split(", ")
    assert refused.json()["error"]["message"]
