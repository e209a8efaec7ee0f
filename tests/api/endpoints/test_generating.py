from __future__ import annotations

import httpx
import pytest

from service.api.endpoints.generating import GENERATING, PATHS


def test_each_path_is_there_once() -> None:
    assert len(PATHS) == len(GENERATING)


@pytest.mark.parametrize("path", sorted(PATHS))
def test_each_is_routed(http: httpx.Client, path: str) -> None:
    assert http.post(path, json=[]).status_code == 400
    refused = http.get(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert refused.json()["error"]["message"]
