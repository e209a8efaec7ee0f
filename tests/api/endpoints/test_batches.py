from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from service.api.batch_calls import BatchCalls
from service.batch_jobs.line_pace import BYTES_PER_S
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.scripted_executor import saying
from tests.api.wire import CHAT, COMPLETIONS, completion, error_of
from tests.e2e.strict_client import strict_client

BATCHES = "/v1/batches"
RESPONSES = "/v1/responses"
CONFIG = replace(Scene().config, api_keys=("ann:none", "bob:sk-b"))
ANN, BOB = ({"Authorization": f"Bearer {key}"} for key in ("none", "sk-b"))
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": MODEL, "prompt": "hello", "max_tokens": 8},
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]},
    RESPONSES: {"model": MODEL, "input": "hello"},
}


@pytest.fixture(scope="module")
def storing() -> Iterator[RunningServer]:
    with running(Scene(config=CONFIG)) as server:
        yield server


@pytest.fixture
def client(storing: RunningServer) -> Iterator[OpenAI]:
    storing.reset()
    storing.say("hi there")
    with strict_client(storing.base_url) as client:
        yield client
    storing.executor.gate.set()
    storing.check_idle()
    assert list((storing.storage.folder / "batches").glob("*")) == []


def line(number: int, url: str = COMPLETIONS, **changes: Any) -> dict[str, Any]:
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": BODIES.get(url, {}), **changes}


def upload(client: OpenAI, lines: Sequence[Any]) -> str:
    content = "\n".join(json.dumps(each) for each in lines).encode()
    return client.files.create(file=("requests.jsonl", content), purpose="batch").id


def begin(client: OpenAI, lines: Sequence[Any], endpoint: Any = COMPLETIONS, window: Any = "24h", **fields: Any) -> Any:
    return client.batches.create(
        input_file_id=upload(client, lines), endpoint=endpoint, completion_window=window, **fields
    )


def wait_for(client: OpenAI, batch: Any, *statuses: str) -> Any:
    deadline_s = time.monotonic() + 30
    while batch.status not in (statuses or ("completed", "failed", "expired", "cancelled")):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def lines_of(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_batch_is_answered_as_its_requests_are(storing: RunningServer, client: OpenAI, endpoint: str) -> None:
    batch = begin(client, [line(n, endpoint) for n in range(20)], endpoint, metadata={"night": "ly"})
    assert re.fullmatch(r"batch_[0-9a-f]{24}", batch.id)
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", endpoint)
    assert batch.expires_at == batch.created_at + 24 * 3600
    batch = wait_for(client, batch)
    assert (batch.status, batch.errors, batch.error_file_id) == ("completed", None, None)
    assert batch.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
    assert batch.metadata == {"night": "ly"}
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert times == sorted(times)
    answers = lines_of(client, batch.output_file_id)
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"line-{n}" for n in range(20))
    body = {**BODIES[endpoint]}
    alone = httpx.post(storing.base_url + endpoint, json=body, headers=ANN).json()
    fixed = {"id", "created", "created_at", "output", "completed_at"}
    for answer in answers:
        assert re.fullmatch(r"batch_req_[0-9a-f]+_\d+", answer["id"])
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["request_id"]
        of_batch = answer["response"]["body"]
        assert {k: v for k, v in of_batch.items() if k not in fixed} == {
            k: v for k, v in alone.items() if k not in fixed
        }
    file = client.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert client.batches.retrieve(batch.id) == batch


def test_what_a_request_is_refused_with_is_in_the_error_file(client: OpenAI) -> None:
    bad = (
        line(1, body={"model": "nobody", "prompt": "x"}),
        line(2, body={"model": MODEL}),
        line(3, body={"prompt": 1.5}),
    )
    batch = wait_for(client, begin(client, [line(0), *bad, line(4)]))
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 5, "completed": 2, "failed": 3}
    assert {answer["custom_id"] for answer in lines_of(client, batch.output_file_id)} == {"line-0", "line-4"}
    errors = {answer["custom_id"]: answer["response"] for answer in lines_of(client, batch.error_file_id)}
    assert {name: answer["status_code"] for name, answer in errors.items()} == {
        "line-1": 404,
        "line-2": 400,
        "line-3": 400,
    }
    assert errors["line-1"]["body"]["error"]["code"] == "model_not_found"
    assert errors["line-3"]["body"]["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        (line(1, custom_id="line-0"), "duplicate_custom_id", "custom_id"),
        (line(1, custom_id=None), "invalid_custom_id", "custom_id"),
        (line(1, custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (line(1, method="GET"), "invalid_method", "method"),
        (line(1, url=CHAT), "invalid_url", "url"),
        (line(1, url="/v1/embeddings"), "invalid_url", "url"),
        (line(1, body="text"), "invalid_body", "body"),
        (line(1, body={**BODIES[COMPLETIONS], "stream": True}), "unsupported_parameter", "body.stream"),
    ],
)
def test_a_file_with_a_wrong_line_fails_before_any_is_run(client: OpenAI, wrong: Any, code: str, param: str) -> None:
    batch = wait_for(client, begin(client, [line(0), wrong]))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    (error,) = batch.errors.data
    assert (error.code, error.param, error.line) == (code, param, 2)
    assert batch.failed_at is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/audio/speech"}, "endpoint"),
        ({"endpoint": "/v1/messages"}, "endpoint"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
        ({"metadata": {str(n): "b" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"other": 1}, "other"),
    ],
)
def test_what_is_refused_at_once(storing: RunningServer, client: OpenAI, fields: Any, param: str) -> None:
    body = {"input_file_id": upload(client, [line(0)]), "endpoint": COMPLETIONS, "completion_window": "24h", **fields}
    refused = httpx.post(storing.base_url + BATCHES, json=body, headers=ANN)
    assert refused.status_code == (404 if param == "input_file_id" else 400)
    assert (error_of(refused)["param"] or "").startswith(param)


def test_a_file_of_another_purpose_is_refused(client: OpenAI) -> None:
    file = client.files.create(file=("a", b'{"a": 1}'), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert refused.value.param == "input_file_id"


def test_only_its_own_client_finds_it_and_lists_are_paged(storing: RunningServer, client: OpenAI) -> None:
    made = [begin(client, [line(0)]).id for _ in range(3)]
    url = f"{storing.base_url}{BATCHES}"
    for answer in (httpx.get(f"{url}/{made[0]}", headers=BOB), httpx.post(f"{url}/{made[0]}/cancel", headers=BOB)):
        assert (answer.status_code, error_of(answer)["param"]) == (404, "batch_id")
    assert httpx.get(url, headers=BOB).json()["data"] == []
    assert [batch.id for batch in client.batches.list(limit=2)][:3] == made[::-1]
    for batch_id in made:
        wait_for(client, client.batches.retrieve(batch_id))


def test_cancelled_it_gives_what_it_has(storing: RunningServer, client: OpenAI) -> None:
    storing.executor.delay_s = 0.02
    batch = begin(client, [line(n) for n in range(500)])
    deadline_s = time.monotonic() + 30
    while not (batch := client.batches.retrieve(batch.id)).request_counts.completed and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert batch.status == "in_progress"
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.delete(batch.input_file_id)
    assert refused.value.code == "file_in_use"
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = wait_for(client, batch)
    storing.executor.delay_s = 0.0
    assert (batch.status, batch.cancelled_at is not None, batch.completed_at) == ("cancelled", True, None)
    done = {answer["custom_id"] for answer in lines_of(client, batch.output_file_id)}
    not_done = list(lines_of(client, batch.error_file_id))
    assert 0 < len(done) == batch.request_counts.completed < 500
    assert {answer["error"]["code"] for answer in not_done} == {"batch_cancelled"}
    assert sorted([*done, *(answer["custom_id"] for answer in not_done)]) == sorted(f"line-{n}" for n in range(500))
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'cancelled'"):
        client.batches.cancel(batch.id)
    client.files.delete(batch.input_file_id)


def test_failed_by_a_defect_it_says_so_and_gives_what_it_has(
    storing: RunningServer, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_turn, num_begun = BatchCalls._wait_turn, 0

    async def breaks_at_200(calls: BatchCalls, num_bytes: int) -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == 200:
            raise RuntimeError("a defect")
        await wait_turn(calls, num_bytes)

    monkeypatch.setattr(BatchCalls, "_wait_turn", breaks_at_200)
    batch = wait_for(client, begin(client, [line(n) for n in range(300)]))
    assert (batch.status, batch.failed_at is not None, batch.completed_at) == ("failed", True, None)
    (error,) = batch.errors.data
    assert (error.code, error.line) == ("server_error", None)
    done = {answer["custom_id"] for answer in lines_of(client, batch.output_file_id)}
    not_done = lines_of(client, batch.error_file_id)
    assert 0 < len(done) == batch.request_counts.completed < 200
    assert {answer["error"]["code"] for answer in not_done} == {"batch_failed"}
    assert sorted([*done, *(answer["custom_id"] for answer in not_done)]) == sorted(f"line-{n}" for n in range(300))


def test_when_its_window_ends_it_gives_what_it_has(storing: RunningServer, client: OpenAI) -> None:
    storing.executor.delay_s = 0.05
    batch = wait_for(client, begin(client, [line(n) for n in range(2000)], window="2s"))
    storing.executor.delay_s = 0.0
    assert (batch.status, batch.expired_at is not None) == ("expired", True)
    assert batch.expired_at - batch.created_at < 20
    codes = Counter(answer["error"]["code"] for answer in lines_of(client, batch.error_file_id))
    assert codes == {"batch_expired": 2000 - batch.request_counts.completed}


def test_others_are_served_beside_it_and_go_first(storing: RunningServer, client: OpenAI) -> None:
    storing.executor.delay_s = 0.005
    batch = begin(client, [line(n) for n in range(600)])
    wait_for(client, batch, "in_progress")
    for _ in range(5):
        answer = httpx.post(storing.base_url + COMPLETIONS, json=completion(), headers=BOB, timeout=10)
        assert answer.status_code == 200
    assert client.batches.retrieve(batch.id).status == "in_progress"
    client.batches.cancel(batch.id)
    wait_for(client, batch)
    storing.executor.delay_s = 0.0


def test_beside_others_lines_are_read_slowly_and_alone_they_are_not(storing: RunningServer, client: OpenAI) -> None:
    """Lines that are refused at once: what they take is their reading alone."""
    size, count = BYTES_PER_S // 4, 6
    lines = [line(n, body={"model": "nobody", "prompt": "x" * size}) for n in range(count)]
    storing.executor.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(httpx.post, storing.base_url + COMPLETIONS, json=completion(), headers=BOB, timeout=30)
        while httpx.get(f"{storing.base_url}/load", headers=BOB).json()["server_load"] == 0:
            time.sleep(0.01)
        batch, began_s = begin(client, lines), time.monotonic()
        batch = wait_for(client, batch)
        assert time.monotonic() - began_s > (count - 1) * size / BYTES_PER_S
        slow = begin(client, [line(n, body={"model": "nobody", "prompt": "x" * 30 * size}) for n in range(3)])
        wait_for(client, slow, "in_progress")
        storing.executor.gate.set()
        assert other.result().status_code == 200
    began_s = time.monotonic()
    slow = wait_for(client, slow)
    assert time.monotonic() - began_s < 7.5, "the second of them waits for nobody once it is quiet"
    assert [batch.request_counts.failed, slow.request_counts.failed] == [count, 3]


def test_a_request_that_fails_is_one_line_of_the_error_file(storing: RunningServer, client: OpenAI) -> None:
    storing.executor.fault = RuntimeError("the device coughs")
    batch = wait_for(client, begin(client, [line(0), line(1)]))
    storing.executor.fault = None
    assert (batch.status, batch.request_counts.failed) == ("completed", 2)
    assert {answer["response"]["status_code"] for answer in lines_of(client, batch.error_file_id)} == {500}


def test_a_client_may_have_only_so_many(
    storing: RunningServer, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.batch_jobs.batch_jobs._MAX_UNFINISHED", 0)
    with pytest.raises(openai.RateLimitError):
        begin(client, [line(0)])


def events_of(stream: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Name and content of each event, to `[DONE]`."""
    name = ""
    for text in stream.iter_lines():
        if text.startswith("event: "):
            name = text[7:]
        elif text == "data: [DONE]":
            return
        elif text.startswith("data: "):
            yield name, json.loads(text[6:])


def followed(server: RunningServer, batch_id: str, headers: dict[str, str] = ANN, **query: str) -> Any:
    return httpx.stream("GET", f"{server.base_url}{BATCHES}/{batch_id}/events", headers=headers, params=query)


def test_its_results_are_pushed_as_they_come_and_then_its_end(storing: RunningServer, client: OpenAI) -> None:
    storing.executor.delay_s = 0.01
    wrong = line(300, body={"prompt": 1.5})
    batch = begin(client, [*(line(n) for n in range(300)), wrong])
    with followed(storing, batch.id) as stream:
        events = events_of(stream)
        told = [next(events)]
        while told[-1][0] != "batch.line":
            told.append(next(events))
        assert client.batches.retrieve(batch.id).status == "in_progress", "its first answer is told while others run"
        storing.executor.delay_s = 0.0
        told += events
    batch = client.batches.retrieve(batch.id)
    assert told[-1] == ("batch", httpx.get(f"{storing.base_url}{BATCHES}/{batch.id}", headers=ANN).json())
    states = [state for name, state in told if name == "batch"]
    assert [state["status"] for state in states] == sorted(
        (state["status"] for state in states), key=["validating", "in_progress", "finalizing", "completed"].index
    )
    counts = [state["request_counts"]["completed"] for state in states]
    assert counts == sorted(counts) and counts[-1] == 300
    pushed = [result for name, result in told if name == "batch.line"]
    kept = lines_of(client, batch.output_file_id) + lines_of(client, batch.error_file_id)
    assert sorted(pushed, key=str) == sorted(kept, key=str)
    with followed(storing, batch.id) as stream:  # of one that is over, all of it again
        again = list(events_of(stream))
    assert sorted((result for name, result in again if name == "batch.line"), key=str) == sorted(kept, key=str)
    with followed(storing, batch.id, lines="false") as stream:
        assert list(events_of(stream)) == told[-1:]


def test_nobody_else_follows_it_and_so_many_do_at_most(
    storing: RunningServer, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = wait_for(client, begin(client, [line(0)]))
    for asked, status in ((followed(storing, batch.id, BOB), 404), (followed(storing, batch.id, lines="maybe"), 400)):
        with asked as refused:
            assert refused.status_code == status
    monkeypatch.setattr("service.api.endpoints.batches.MAX_FOLLOWED", 1)
    storing.executor.gate.clear()
    held = begin(client, [line(0)])
    with followed(storing, held.id) as stream:
        events = events_of(stream)
        next(events)
        with followed(storing, batch.id) as refused:
            assert refused.status_code == 503
    deadline_s = time.monotonic() + 30  # who has gone makes room
    while httpx.get(f"{storing.base_url}{BATCHES}/{batch.id}/events", headers=ANN).status_code == 503:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    storing.executor.gate.set()
    wait_for(client, held)


def test_a_server_that_ends_lets_go_of_who_follows() -> None:
    with running(Scene(config=CONFIG)) as server, strict_client(server.base_url) as client:
        server.executor.gate.clear()
        batch = begin(client, [line(n) for n in range(500)])
        with followed(server, batch.id) as stream:
            events = events_of(stream)
            next(events)
            server.executor.gate.set()
            server.drain(5)
            states = [state for name, state in events if name == "batch"]
        assert states[-1]["status"] == "in_progress", "a later run of the server goes on with it"
        client.batches.cancel(batch.id)  # no task is to be left


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_server_that_ends_waits_for_no_line_and_begins_none(endpoint: str) -> None:
    with running(Scene(config=CONFIG)) as server, strict_client(server.base_url) as client:
        server.play(saying(server.tokenizer.encode("a", add_special_tokens=False)))
        server.executor.delay_s = 0.05
        body = BODIES[endpoint] | ({"max_tokens": 2000} if endpoint == COMPLETIONS else {})
        batch = begin(client, [line(n, endpoint, body=body) for n in range(500)], endpoint)
        while server.engine.num_live < 3:
            time.sleep(0.01)
        began_s = time.monotonic()
        server.drain(60)
        assert time.monotonic() - began_s < 5
        assert server.engine.num_live == 0
        time.sleep(1.5)  # they are tried again every second
        batch = client.batches.retrieve(batch.id)
        assert batch.status == "in_progress", "a later run of the server goes on with it"
        assert batch.request_counts.model_dump() == {"total": 500, "completed": 0, "failed": 0}
        client.batches.cancel(batch.id)  # no task is to be left


def test_once_the_end_is_announced_no_line_begins() -> None:
    with running(Scene(config=CONFIG)) as server, strict_client(server.base_url) as client:
        server.on_loop(server.state.announce_end)
        batch = begin(client, [line(0)])
        time.sleep(0.3)
        assert client.batches.retrieve(batch.id).request_counts.completed == 0
        alone = httpx.post(server.base_url + COMPLETIONS, json=BODIES[COMPLETIONS], headers=ANN)
        assert alone.status_code == 200, "other requests are taken yet"
        client.batches.cancel(batch.id)  # no task is to be left
