from __future__ import annotations

import contextlib
import struct
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI

from service.config import ApiConfig
from service.core.embedding import EmbedderConfig
from service.protocol.embeddings import EmbeddingResponse
from tests.api.running_server import MODEL, SCHEDULER, RunningServer, Scene, running
from tests.api.scripted_executor import HIDDEN_SIZE, hidden_state
from tests.api.wire import error_of
from tests.e2e.strict_client import strict_client

EMBEDDINGS = "/v1/embeddings"
EMBEDDER = EmbedderConfig("last", True, HIDDEN_SIZE)
MOST_INPUTS = 2048
CONTEXT = 64
NUM_SEATS = 8


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Few seats and little room to wait: a call of many inputs comes by in parts."""
    few = {"max_num_seqs": NUM_SEATS, "max_num_batched_tokens": 96, "max_waiting_requests": 2}
    scheduler = type(SCHEDULER)(watermark=0.0, max_waiting_tokens=100_000, **few)
    scene = Scene(scheduler=scheduler, embedder=EMBEDDER, max_model_len=CONTEXT, finds_prefixes=True)
    with running(scene) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    server.reset()
    with strict_client(server.base_url) as client:
        yield client


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    server.reset()
    with httpx.Client(base_url=server.base_url, timeout=20) as http:
        yield http
    server.executor.gate.set()
    server.check_idle()


def ids_of(server: RunningServer, text: str) -> list[int]:
    return list(server.tokenizer.encode(text, add_special_tokens=True))


def expected(token_ids: list[int], size: int | None = None) -> list[float]:
    return EMBEDDER.finished(hidden_state(token_ids), size).tolist()


def post(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(EMBEDDINGS, json={"model": MODEL, **fields})


def test_openais_client_gets_a_vector_for_each_input_in_their_order(client: OpenAI, server: RunningServer) -> None:
    texts = ["hello", "hello world", "x"]
    answer = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert [each.embedding for each in answer.data] == [expected(ids_of(server, text)) for text in texts]
    assert (answer.object, answer.data[0].object, answer.model) == ("list", "embedding", MODEL)
    num_tokens = sum(len(ids_of(server, text)) for text in texts)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)


def test_numbers_are_bit_for_bit_those_of_base64(http: httpx.Client, client: OpenAI) -> None:
    as_numbers = client.embeddings.create(model=MODEL, input="hello", encoding_format="float").data[0].embedding
    loose = client.with_options()  # asks for base64 by itself; held to its types, it refuses its own request's answer
    loose._strict_response_validation = False
    assert loose.embeddings.create(model=MODEL, input="hello").data[0].embedding == as_numbers
    written = post(http, input="hello", encoding_format="base64").json()["data"][0]["embedding"]
    assert list(struct.unpack(f"<{HIDDEN_SIZE}f", b64decode(written))) == as_numbers
    assert post(http, input="hello").json()["data"][0]["embedding"] == as_numbers


@pytest.mark.parametrize("form", ["text", "texts", "ids", "lists of ids"])
def test_an_input_may_be_text_or_ids(form: str, http: httpx.Client, server: RunningServer) -> None:
    ids = ids_of(server, "hello")
    given: Any = {"text": "hello", "texts": ["hello"], "ids": ids, "lists of ids": [ids]}[form]
    answer = EmbeddingResponse.model_validate(post(http, input=given, user="somebody").json())
    assert answer.data[0].embedding == expected(ids)
    assert len(answer.data) == 1


@pytest.mark.parametrize("size", [1, HIDDEN_SIZE - 1, HIDDEN_SIZE])
def test_dimensions_cut_a_vector_which_is_then_normalized(size: int, client: OpenAI, server: RunningServer) -> None:
    options: Any = {"dimensions": size, "encoding_format": "float"}
    vector = client.embeddings.create(model=MODEL, input="hello", **options).data[0].embedding
    assert vector == expected(ids_of(server, "hello"), size)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_a_call_of_more_inputs_than_there_are_seats_and_room_to_wait(http: httpx.Client) -> None:
    inputs = [[1 + i % 7, 3, 5 + i % 11] for i in range(300)]
    answer = post(http, input=inputs).json()
    assert [each["index"] for each in answer["data"]] == [*range(300)]
    assert [each["embedding"] for each in answer["data"]] == [expected(ids) for ids in inputs]
    assert answer["usage"]["prompt_tokens"] == 900


def test_a_long_answer_is_sent_as_it_is_written(http: httpx.Client) -> None:
    response = post(http, input=[[1, 2]] * MOST_INPUTS)
    assert "content-length" not in response.headers
    assert response.headers["content-type"] == "application/json"
    answer = EmbeddingResponse.model_validate(response.json())
    assert {tuple(each.embedding) for each in answer.data} == {tuple(expected([1, 2]))}
    assert len(answer.data) == MOST_INPUTS


def test_a_prompt_that_was_there_is_cached_and_says_so(http: httpx.Client) -> None:
    ids = [*range(20, 40)]
    first, again = (post(http, input=ids).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    salted = post(http, input=ids, cache_salt="mine").json()
    assert salted["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_prompt_may_fill_the_context_and_be_no_longer(http: httpx.Client) -> None:
    assert post(http, input=[1] * CONTEXT).status_code == 200
    refused = post(http, input=[[1], [1] * (CONTEXT + 1)])
    assert refused.status_code == 400
    assert error_of(refused)["code"] == "context_length_exceeded"
    assert error_of(refused)["param"] == "input"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [["a"]]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [10**6]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": ["a"] * (MOST_INPUTS + 1)}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": HIDDEN_SIZE + 1}, "dimensions"),
        ({"input": "a", "dimensions": "6"}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "temperature": 1.0}, "temperature"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": "a", "request_id": "?"}, "request_id"),
        ({"input": "a", "cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(fields: dict[str, Any], param: str, http: httpx.Client) -> None:
    refused = post(http, **fields)
    assert refused.status_code == 400
    assert error_of(refused)["param"] == param


def test_unknown_fields_are_named_and_nulls_are_as_if_they_were_not_there(http: httpx.Client) -> None:
    response = post(http, input="a", colour="red", dimensions=None, temperature=None, encoding_format=None)
    assert response.status_code == 200
    assert response.headers["x-ignored-params"] == "colour"
    assert post(http, input="a", model="other").status_code == 404


def test_where_the_call_spent_its_time(http: httpx.Client) -> None:
    answer = post(http, input=["hello", "world"]).json()
    trace = http.get(f"/v1/requests/{answer['id']}/trace").json()
    assert trace["outcome"] == "finished"
    assert [prompt["index"] for prompt in trace["prompts"]] == [0, 1]


def test_a_client_that_leaves_ends_all_of_its_inputs(http: httpx.Client, server: RunningServer) -> None:
    server.executor.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        http.post(EMBEDDINGS, json={"input": [[each] for each in range(1, 30)]}, timeout=0.3)
    server.executor.gate.set()
    server.check_idle()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "model": MODEL}),
        ("/v1/completions/render", {"prompt": "a"}),
    ],
)
def test_a_model_that_embeds_generates_nothing(path: str, body: dict[str, Any], http: httpx.Client) -> None:
    refused = http.post(path, json=body)
    assert refused.status_code == 400
    assert "use /v1/embeddings" in refused.json()["error"]["message"]
    assert http.post("/tokenize", json={"prompt": "hello"}).status_code == 200


def test_sizes_that_the_model_was_not_trained_for_are_refused() -> None:
    scene = Scene(embedder=EmbedderConfig("last", True, HIDDEN_SIZE, (2, 4)))
    with running(scene) as server, httpx.Client(base_url=server.base_url) as http:
        for size in (2, 4, HIDDEN_SIZE):
            assert len(post(http, input="hello", dimensions=size).json()["data"][0]["embedding"]) == size
        assert "this model supports 2, 4, got 3." in error_of(post(http, input="hello", dimensions=3))["message"]


def test_a_fault_of_one_input_is_the_calls_and_ends_the_others() -> None:
    with running(Scene(embedder=EMBEDDER, config=ApiConfig((MODEL,), strict_params=True))) as server:
        server.executor.fault = RuntimeError("broken")
        with httpx.Client(base_url=server.base_url, timeout=20) as http:
            assert post(http, input=["a", "b"]).status_code == 500
            server.check_idle()
            assert error_of(post(http, input="a", colour="red"))["code"] == "unknown_parameter"


def test_a_full_server_refuses_a_call_none_of_whose_inputs_may_wait(http: httpx.Client, server: RunningServer) -> None:
    server.executor.gate.clear()
    refused = None
    with contextlib.ExitStack() as open_clients:
        while refused is None:
            waiting = open_clients.enter_context(httpx.Client(base_url=server.base_url, timeout=0.2))
            with contextlib.suppress(httpx.ReadTimeout):
                refused = post(waiting, input=[[7]])
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        server.executor.gate.set()
    server.check_idle()


def test_a_model_that_generates_embeds_nothing() -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        refused = post(http, input="a")
        assert refused.status_code == 400
        assert "1_Pooling" in error_of(refused)["message"]
