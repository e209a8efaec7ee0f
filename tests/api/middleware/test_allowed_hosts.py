from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from tests.api.running_server import Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of


@pytest.fixture(scope="module")
def named() -> Iterator[httpx.Client]:
    config = replace(Scene().config, allowed_hosts=("LLM.example.com", "*.cluster.local"))
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        yield http


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8000", "LOCALHOST", "localhost.", "a.localhost:80", "llm.example.com:443"),
        *("LLM.Example.com", "a.b.cluster.local", "127.0.0.1", "10.1.2.3:8000", "[::1]", "[fe80::1]:8000", ""),
    ],
)
def test_its_own_names_localhost_and_addresses_pass(named: httpx.Client, host: str) -> None:
    assert named.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost"),
        *("example.com", "a.llm.example.com", "cluster.local", "xcluster.local", "2130706433", "127.1", "::1"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/", "/nope"])
def test_another_name_is_refused(named: httpx.Client, path: str, host: str) -> None:
    answer = named.get(path, headers={"Host": host})
    assert answer.status_code == 403
    assert error_of(answer)["code"] == "host_not_allowed"
    assert "--allowed-hosts" in str(error_of(answer)["message"])


def test_no_work_is_done_for_a_page_that_gave_its_name_this_address(named: httpx.Client) -> None:
    headers = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
    assert named.post(COMPLETIONS, json=completion(), headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
def test_probes_ask_by_any_name(named: httpx.Client, path: str) -> None:
    assert named.get(path, headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_page_of_elsewhere_may_send_without_asking_is_not_taken(named: httpx.Client, kind: str) -> None:
    """The rest of the argument: a browser sends these of any page, and asks leave for JSON."""
    headers = {"Host": "localhost:8000", "Origin": "http://evil.example", "Content-Type": kind}
    assert named.post(COMPLETIONS, content=b"{}", headers=headers).status_code == 415
    asked = named.options(COMPLETIONS, headers={**headers, "Access-Control-Request-Method": "POST"})
    assert asked.status_code == 405
    assert "access-control-allow-origin" not in asked.headers
