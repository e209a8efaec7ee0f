from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import httpx
import pytest

from service.api import version


def test_says_a_version(http: httpx.Client) -> None:
    body = http.get("/version").json()
    assert set(body) == {"version"}
    assert body["version"]


def test_a_source_tree_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(version, "version", missing)
    assert version._version() == "unknown"
