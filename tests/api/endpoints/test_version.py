from __future__ import annotations

import platform

import httpx

from service.core.version import distribution_version
from tests.api.running_server import Scene, running
from tests.api.wire import COMPLETIONS, completion


def test_says_what_runs(http: httpx.Client) -> None:
    facts = http.get("/version").json()
    assert facts["version"] == distribution_version()
    assert facts["python"] == platform.python_version()
    assert "starlette" in facts["packages"]
    assert facts["build"] == {"dtype": "none"}
    assert facts["system_fingerprint"] == http.post(COMPLETIONS, json=completion()).json()["system_fingerprint"]


def test_answers_while_the_model_loads() -> None:
    with running(Scene(ready=False)) as server:
        facts = httpx.get(f"{server.base_url}/version").json()
    assert "build" not in facts
    assert facts["version"] == distribution_version()
