from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from service.config import ApiConfig
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.some_adapters import SomeAdapters
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of

ADMIN, USER = {"Authorization": "Bearer boss"}, {"Authorization": "Bearer guest"}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    config = ApiConfig((MODEL, "alias"), api_keys=("guest",), admin_api_keys=("boss",), serves_adapters=True)
    with running(Scene(config=config, adapters=SomeAdapters("poet", "clerk"), finds_prefixes=True)) as server:
        yield server


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, headers=USER) as client:
        yield client


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)])
def test_a_call_names_an_adapter_as_its_model(server: RunningServer, http: httpx.Client, path: str, body) -> None:
    server.say("ink")
    answer = http.post(path, json=body(model="poet"))
    assert answer.status_code == 200 and answer.json()["model"] == "poet"
    assert http.post(path, json=body(model="alias")).json()["model"] == MODEL
    stream = http.post(path, json=body(model="clerk", stream=True)).text
    assert '"model":"clerk"' in stream and "poet" not in stream


def test_the_executor_is_told_of_adapters_and_slots(server: RunningServer, http: httpx.Client) -> None:
    for model in ("poet", MODEL, "clerk", "poet"):
        http.post(COMPLETIONS, json=completion(model=model))
    assert [load.adapter_id for load in server.executor.adapter_loads] == [1, 2]
    assert server.executor.adapter_slots == [1, 0, 2, 1]


def test_prefixes_are_found_again_by_who_computed_them_only(server: RunningServer, http: httpx.Client) -> None:
    server.say("ink")

    def cached(model: str) -> int:
        answer = http.post(COMPLETIONS, json=completion(model=model, prompt="the same long beginning of a prompt"))
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(model) for model in ("poet", MODEL, "clerk")] == [0, 0, 0]
    assert all(cached(model) > 0 for model in ("poet", MODEL, "clerk"))
    http.post(LOAD, headers=ADMIN, json={"lora_name": "poet", "lora_path": "poet-2", "load_inplace": True})
    assert cached("poet") == 0, "other weights"


def test_one_that_cannot_be_served_is_refused_with_the_reason(http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, json=chat(model="broken")))
    assert (error["code"], "NaN in q_proj" in error["message"]) == ("invalid_adapter", True)
    assert error_of(http.post(CHAT, json=chat(model="nobody")))["code"] == "model_not_found"


def test_the_models_are_listed_with_their_parent(http: httpx.Client) -> None:
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert list(cards) == [MODEL, "alias", "poet", "clerk"]
    assert (cards["poet"]["parent"], cards["poet"]["root"], cards[MODEL]["parent"]) == (MODEL, "poet", None)
    assert http.get("/v1/models/clerk").json() == cards["clerk"]
    assert http.get("/v1/models/nobody").status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(model="nobody")),
        (COMPLETIONS, completion(model="nobody")),
        ("/tokenize", {"model": "nobody", "prompt": "ink"}),
    ],
)
def test_who_asks_for_another_is_told_them_too(http: httpx.Client, path: str, body: dict[str, object]) -> None:
    message = error_of(http.post(path, json=body))["message"]
    assert message == "The model 'nobody' does not exist; this server has 'tiny/model', 'alias', 'poet', 'clerk'."
    assert error_of(http.get("/v1/models/nobody"))["message"] == message


def test_some_of_many_are_told_and_how_many_there_are() -> None:
    adapters = SomeAdapters(*(f"poet-{number}" for number in range(100)))
    with running(Scene(adapters=adapters)) as server, httpx.Client(base_url=server.base_url) as http:
        message = error_of(http.post(CHAT, json=chat(model="nobody")))["message"]
    assert message.endswith("'poet-20', 'poet-21' and 78 more (GET /v1/models).")
    assert "'tiny/model', 'alias', 'poet-0', " in message


def test_ids_are_the_models(http: httpx.Client) -> None:
    tokens = [
        http.post("/tokenize", json={"model": name, "prompt": "ink"}).json()["tokens"] for name in (MODEL, "poet")
    ]
    assert tokens[0] == tokens[1]
    assert http.post("/tokenize", json={"model": "nobody", "prompt": "ink"}).status_code == 404


def test_an_operator_loads_replaces_and_unloads(server: RunningServer, http: httpx.Client) -> None:
    server.say("ink")
    body = {"lora_name": "muse", "lora_path": "poet"}
    assert http.post(LOAD, headers=ADMIN, json=body).text == "Success: LoRA adapter 'muse' added successfully."
    assert http.post(CHAT, json=chat(model="muse")).json()["model"] == "muse"
    assert error_of(http.post(LOAD, headers=ADMIN, json=body))["param"] == "lora_name"
    assert http.post(LOAD, headers=ADMIN, json={**body, "load_inplace": True}).status_code == 200
    assert http.post(UNLOAD, headers=ADMIN, json={"lora_name": "muse"}).status_code == 200
    assert http.post(CHAT, json=chat(model="muse")).status_code == 404
    assert error_of(http.post(UNLOAD, headers=ADMIN, json={"lora_name": "muse"}))["param"] == "lora_name"


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_nobody_else_does(http: httpx.Client, path: str) -> None:
    assert http.post(path, json={"lora_name": "poet", "lora_path": "x"}).status_code == 403
    assert "poet" in [card["id"] for card in http.get("/v1/models").json()["data"]]


@pytest.mark.parametrize("body", [{}, {"lora_name": 1}, {"lora_name": "a", "lora_path": "b", "lora_rank": 3}, []])
def test_a_body_of_another_shape_is_refused(http: httpx.Client, body: object) -> None:
    assert http.post(LOAD, headers=ADMIN, json=body).status_code == 400


def test_a_server_without_adapters_says_so() -> None:
    config = ApiConfig((MODEL,), admin_api_keys=("boss",))
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url, headers=ADMIN) as http:
        error = error_of(http.post(LOAD, json={"lora_name": "a", "lora_path": "b"}))
        assert "--lora-dir" in error["message"]
