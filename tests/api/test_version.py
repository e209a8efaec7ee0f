from __future__ import annotations

import httpx

from service.core.version import distribution_version


def test_says_the_version(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": distribution_version()}
