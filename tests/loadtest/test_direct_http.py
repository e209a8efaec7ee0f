import json

import pytest

from loadtest.direct_http import opened
from loadtest.server_facts import fetch_server_facts


def test_a_proxy_of_the_environment_is_not_asked(fast_stub_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "" if "no_" in name.lower() else "http://127.0.0.1:1")
    with opened(f"{fast_stub_url}/v1/models", 10) as response:
        assert json.load(response)["data"]
    assert fetch_server_facts(fast_stub_url, {}).model_id == "stub"
