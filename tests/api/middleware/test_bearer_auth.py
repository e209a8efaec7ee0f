from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from service.config import ApiConfig
from tests.api.running_server import MODEL, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of

KEYS = ("sk-one", "sk-two")


@pytest.fixture(scope="module")
def guarded() -> object:
    config = ApiConfig(served_model_names=(MODEL,), api_keys=KEYS)
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        yield http


@pytest.mark.parametrize("header", [f"Bearer {KEYS[0]}", f"Bearer {KEYS[1]}", f"bearer {KEYS[0]}"])
def test_a_right_key_opens(guarded: httpx.Client, header: str) -> None:
    assert guarded.post(COMPLETIONS, json=completion(), headers={"Authorization": header}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "sk-one"},
        {"x-api-key": "sk-one", "Authorization": "Bearer of another server"},
        {"x-api-key": "of another server", "Authorization": "Bearer sk-one"},
    ],
)
def test_a_right_key_in_anthropics_header_opens(guarded: httpx.Client, headers: dict[str, str]) -> None:
    assert guarded.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["", "sk-on", "Bearer sk-one"])
def test_a_wrong_one_does_not(guarded: httpx.Client, key: str) -> None:
    assert guarded.get("/v1/models", headers={"x-api-key": key}).status_code == 401


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer sk-on", "Bearer sk-one2", "Basic sk-one", "sk-one"])
@pytest.mark.parametrize("path", ["/v1/models", "/version", "/nope", "//v1/models", "/health/../v1"])
def test_a_wrong_key_does_not(guarded: httpx.Client, path: str, header: str) -> None:
    response = guarded.get(path, headers={"Authorization": header} if header else {})
    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/"])
def test_these_need_no_key(guarded: httpx.Client, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_the_key_is_checked_before_the_body_is_read(guarded: httpx.Client) -> None:
    assert guarded.post(COMPLETIONS, content=b"{").status_code == 401


def test_metrics_can_be_guarded_and_keys_have_names() -> None:
    config = replace(Scene().config, api_keys=("ann:sk-a", "ann:sk-b", "bob:sk-c"), guard_metrics=True)
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        assert http.get("/metrics").status_code == 401
        assert http.get("/metrics", headers={"Authorization": "Bearer ann:sk-a"}).status_code == 401
        assert http.get("/metrics", headers={"Authorization": "Bearer sk-b"}).status_code == 200

        def trace(key: str, call_id: str) -> int:
            return http.get(f"/v1/requests/{call_id}/trace", headers={"Authorization": f"Bearer {key}"}).status_code

        made = http.post(COMPLETIONS, json=completion(), headers={"Authorization": "Bearer sk-a"}).json()["id"]
        assert [trace(key, made) for key in ("sk-a", "sk-b", "sk-c")] == [200, 200, 404]


def test_an_admin_key_opens_all_and_leaves_an_open_server_open() -> None:
    for keys, without_key in ((("ann:sk-a",), 401), ((), 200)):
        config = replace(Scene().config, api_keys=keys, admin_api_keys=("ops:sk-admin",))
        with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
            assert http.get("/v1/models").status_code == without_key
            assert http.get("/v1/models", headers={"Authorization": "Bearer no-key"}).status_code == without_key
            assert http.get("/v1/models", headers={"Authorization": "Bearer sk-admin"}).status_code == 200
