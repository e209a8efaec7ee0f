from __future__ import annotations

import re
from dataclasses import replace

import httpx

from service.api.endpoints.api_docs import page
from service.api.endpoints.openapi import describe
from tests.api.running_server import Scene, running


def test_tells_every_route_and_shape_and_every_link_leads_somewhere(http: httpx.Client) -> None:
    response = http.get("/docs")
    description = http.get("/openapi.json").json()
    assert response.headers["content-type"].startswith("text/html")
    for path in description["paths"]:
        assert f"</b> {path}</code>" in response.text
    anchors = set(re.findall(r'<details id="([^"]*)">', response.text))
    assert anchors == set(description["components"]["schemas"])
    assert set(re.findall(r'href="#([^"]*)"', response.text)) <= anchors


def test_nothing_comes_from_elsewhere_and_nothing_runs(http: httpx.Client) -> None:
    response = http.get("/docs")
    assert "<script" not in response.text
    assert not re.search(r'(src|href)="(https?:|//)', response.text)
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_names_are_text_and_the_page_asks_for_a_key() -> None:
    config = replace(Scene().config, served_model_names=("<script>alert(1)</script>",), api_keys=("sk-a",))
    assert "<script" not in page(describe(config))
    with running(Scene(config=config)) as server:
        assert httpx.get(f"{server.base_url}/docs").status_code == 401
