from __future__ import annotations

import httpx

from tests.api.running_server import MODEL, RunningServer
from tests.api.wire import COMPLETIONS, completion


def test_counts_by_route_template(server: RunningServer, http: httpx.Client) -> None:
    def count(route: str, status: str, method: str = "GET") -> float:
        return server.metric("headrace_http_requests_total", route=route, method=method, status=status)

    before = count("/v1/models/{model_id:path}", "200"), count("unknown", "404"), count(COMPLETIONS, "400", "POST")
    http.get(f"/v1/models/{MODEL}")
    http.get("/secret/" + "x" * 100)
    http.post(COMPLETIONS, json=completion(n=0))
    http.request("PROPFIND", "/health")
    after = count("/v1/models/{model_id:path}", "200"), count("unknown", "404"), count(COMPLETIONS, "400", "POST")
    assert after == tuple(value + 1 for value in before)
    assert count("/health", "405", "other") == 1
    assert "secret" not in http.get("/metrics").text
