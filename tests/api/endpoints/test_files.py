from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from service.config import ConnectionLimits
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import completion, error_of
from tests.e2e.strict_client import strict_client

FILES = "/v1/files"
LINES = b'{"a": 1}\n\n{"b": "x"}\n'
CONFIG = replace(
    Scene().config, api_keys=("ann:none", "bob:sk-b"), max_file_bytes=3_000_000, max_line_bytes=500_000, max_uploads=4
)
ANN, BOB = ({"Authorization": f"Bearer {key}"} for key in ("none", "sk-b"))


@pytest.fixture(scope="module")
def storing() -> Iterator[RunningServer]:
    limits = ConnectionLimits(max_upload_bytes=3_064_000)
    with running(Scene(config=CONFIG, storage_bytes=5_000_000, limits=limits)) as server:
        yield server


@pytest.fixture
def client(storing: RunningServer) -> Iterator[OpenAI]:
    with strict_client(storing.base_url) as client:
        yield client
        for file in client.files.list():
            client.files.delete(file.id)
    storing.check_idle()
    assert storing.storage.budget.num_bytes == 0
    assert contents(storing) == []


def contents(storing: RunningServer) -> list[str]:
    return [path.name for path in (storing.storage.folder / "files").iterdir()]


def upload(storing: RunningServer, content: bytes = LINES, **fields: str) -> httpx.Response:
    data = {"purpose": "batch", **fields}
    files = {"file": ("a.jsonl", content)}
    return httpx.post(storing.base_url + FILES, data=data, files=files, headers=ANN, timeout=30)


def test_a_file_is_uploaded_looked_at_listed_read_and_deleted(client: OpenAI) -> None:
    for purpose in ("batch", "fine-tune"):
        file = client.files.create(file=("data/ümläut.jsonl", LINES), purpose=purpose)
        assert re.fullmatch(r"file-[0-9a-f]{24}", file.id)
        assert (file.filename, file.bytes, file.purpose) == ("ümläut.jsonl", len(LINES), purpose)
        assert (file.object, file.status, file.expires_at) == ("file", "processed", None)
        assert abs(file.created_at - time.time()) < 60
        assert client.files.retrieve(file.id) == file
        answer = client.files.content(file.id)
        assert answer.content == LINES
        assert answer.response.headers["content-disposition"] == "attachment; filename*=utf-8''%C3%BCml%C3%A4ut.jsonl"
        assert client.files.list(purpose=purpose).data == [file]
    client.files.delete(file.id)
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {file.id}"):
            gone(file.id)


def test_a_list_is_paged(client: OpenAI) -> None:
    made = [client.files.create(file=(f"{number}.jsonl", LINES), purpose="batch").id for number in range(5)]
    assert [file.id for file in client.files.list(limit=2)] == made[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc")] == made
    page = client.files.list(limit=2, order="asc", after=made[0])
    assert ([file.id for file in page.data], page.has_more) == (made[1:3], True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=%C2%B2", "limit"),
        ("order=up", "order"),
        ("after=file-x", "after"),
        ("purpose=x", "purpose"),
    ],
)
def test_pages_that_are_none(storing: RunningServer, query: str, param: str) -> None:
    refused = httpx.get(f"{storing.base_url}{FILES}?{query}", headers=ANN)
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)


def test_only_its_own_client_finds_it(storing: RunningServer, client: OpenAI) -> None:
    file = client.files.create(file=("a.jsonl", LINES), purpose="batch")
    url = f"{storing.base_url}{FILES}/{file.id}"
    asked = [httpx.get(url, headers=BOB), httpx.get(f"{url}/content", headers=BOB), httpx.delete(url, headers=BOB)]
    assert [answer.status_code for answer in asked] == [404, 404, 404]
    assert httpx.get(storing.base_url + FILES, headers=BOB).json()["data"] == []
    assert httpx.get(storing.base_url + FILES).status_code == 401
    assert httpx.post(storing.base_url + FILES, content=b"x").status_code == 401


def test_its_time_is_what_was_asked_for(client: OpenAI) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("a.jsonl", LINES), purpose="batch", expires_after=expiry)
    assert file.expires_at == file.created_at + 3600
    for wrong, param in ((3599, "expires_after.seconds"), (2592001, "expires_after.seconds")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.files.create(file=("a", LINES), purpose="batch", expires_after={**expiry, "seconds": wrong})
        assert refused.value.param == param
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("a", LINES), purpose="batch", expires_after={**expiry, "anchor": "x"})
    assert refused.value.param == "expires_after.anchor"


@pytest.mark.parametrize("purpose", ["assistants", "vision", "user_data", "evals", "batch_output"])
def test_purposes_that_nothing_here_uses_are_refused_by_name(storing: RunningServer, purpose: str) -> None:
    refused = error_of(upload(storing, purpose=purpose))
    assert (refused["param"], "fine-tune or batch" in refused["message"]) == ("purpose", True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The file holds no line of JSON"),
        (b"\n \n", "The file holds no line of JSON"),
        (b'{"a": 1}\n{"a": }\n', "Line 2 is not valid JSON"),
        (b'{"a": 1}\n\n\nx', "Line 4 is not valid JSON"),
        (b'{"a": NaN}', "Line 1 is not valid JSON"),
        (b'{"a": "\xff"}', "Line 1 is not valid JSON"),
        (b"[1]\n", "Line 1 is not a JSON object"),
        (b'{"a": 1}{"a": 2}', "Line 1 is not valid JSON"),
        (b'{"a": "' + b"x" * 500_000 + b'"}\n', "Line 1 is longer than 500000 bytes"),
        (b'{"a": 1}\n' * 100_000 + b"x\n", "Line 100001 is not valid JSON"),
    ],
)
def test_a_file_that_is_no_lines_of_json_is_refused_by_its_line(
    storing: RunningServer, client: OpenAI, content: bytes, message: str
) -> None:
    refused = upload(storing, content)
    assert refused.status_code == 400
    assert message in error_of(refused)["message"]
    assert error_of(refused)["param"] == "file"


def test_a_large_line_is_read_in_steps(storing: RunningServer, client: OpenAI) -> None:
    content = json.dumps({"ids": list(range(50_000)), "text": "x" * 100_000}).encode()
    assert client.files.create(file=("a", content), purpose="batch").bytes == len(content)


def test_the_file_may_come_before_the_other_fields(storing: RunningServer, client: OpenAI) -> None:
    boundary = "b"
    disposition = "Content-Disposition: form-data; name="
    body = f'--{boundary}\r\n{disposition}"file"; filename="a"\r\n\r\n'.encode() + LINES
    body += f'\r\n--{boundary}\r\n{disposition}"purpose"\r\n\r\nbatch\r\n--{boundary}--'.encode()
    headers = {**ANN, "content-type": f"multipart/form-data; boundary={boundary}"}
    file = httpx.post(storing.base_url + FILES, content=body, headers=headers).json()
    assert client.files.content(file["id"]).content == LINES


@pytest.mark.parametrize(
    ("data", "files", "param"),
    [
        ({}, {"file": ("a", LINES)}, "purpose"),
        ({"purpose": "batch"}, {"other": ("a", LINES)}, "other"),
        ({"purpose": "batch", "file": "text"}, {"x": ("a", b"")}, "file"),
        ({"purpose": ["batch", "batch"]}, {"file": ("a", LINES)}, "purpose"),
        ({"purpose": "x" * 2000}, {"file": ("a", LINES)}, "purpose"),
        ({"purpose": "batch"}, [("file", ("a", LINES)), ("file", ("b", LINES))], "file"),
    ],
)
def test_forms_that_are_none(storing: RunningServer, client: OpenAI, data: Any, files: Any, param: str) -> None:
    refused = httpx.post(storing.base_url + FILES, data=data, files=files, headers=ANN)
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 415),
        ({"content-type": "multipart/form-data"}, 415),
        ({"content-type": "multipart/form-data; boundary=b", "content-encoding": "gzip"}, 415),
        ({"content-type": "multipart/form-data; boundary=b"}, 400),
    ],
)
def test_bodies_that_are_no_form(storing: RunningServer, headers: dict[str, str], status: int) -> None:
    answer = httpx.post(storing.base_url + FILES, content=b"{}", headers={**ANN, **headers})
    assert (answer.status_code, bool(error_of(answer)["message"])) == (status, True)


def test_no_more_is_stored_than_may_be_and_the_rest_goes_on(storing: RunningServer, client: OpenAI) -> None:
    content = b'{"a": "' + b"x" * 400_000 + b'"}\n'
    first = client.files.create(file=("a", content * 6), purpose="batch")
    client.files.create(file=("a", content * 6), purpose="batch")
    storing.say("hi")
    for chunked in (False, True):
        refused = upload(storing, content * 2) if not chunked else _chunked(storing, content * 2)
        assert (refused.status_code, error_of(refused)["code"]) == (507, "storage_full")
        assert refused.headers["x-should-retry"] == "false"
        assert httpx.post(storing.base_url + "/v1/completions", json=completion(), headers=ANN).status_code == 200
    client.files.delete(first.id)
    assert upload(storing, content).status_code == 200


def _chunked(storing: RunningServer, content: bytes) -> httpx.Response:
    request = httpx.Request("POST", storing.base_url, data={"purpose": "batch"}, files={"file": ("a", content)})
    body, headers = request.read(), {**ANN, "content-type": request.headers["content-type"]}
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    return httpx.post(storing.base_url + FILES, content=pieces, headers=headers, timeout=30)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_file_that_is_too_large_is_413(storing: RunningServer, client: OpenAI, chunked: bool) -> None:
    content = b'{"a": "' + b"x" * 400_000 + b'"}\n'
    refused = (_chunked if chunked else upload)(storing, content * 8)
    assert refused.status_code == 413


def test_a_client_that_leaves_in_the_middle_leaves_nothing(storing: RunningServer, client: OpenAI) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nhost: a\r\nauthorization: Bearer none\r\ncontent-length: 2500000\r\n"
    head += b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
    head += b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n' + LINES * 100_000
    host, port = storing.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head)
        deadline_s = time.monotonic() + 10
        while not storing.on_loop(lambda: len(contents(storing))) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert storing.on_loop(lambda: len(contents(storing))) == 1


def test_no_more_uploads_at_a_time_than_may_be(storing: RunningServer, client: OpenAI) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nhost: a\r\nauthorization: Bearer none\r\ncontent-length: 1000\r\n"
    head += b"content-type: multipart/form-data; boundary=b\r\n\r\n--b"
    host, port = storing.base_url.removeprefix("http://").split(":")
    stalled = [socket.create_connection((host, int(port))) for _ in range(CONFIG.max_uploads)]
    for connection in stalled:
        connection.sendall(head)
    deadline_s = time.monotonic() + 10
    while (refused := upload(storing)).status_code == 200 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert (refused.status_code, error_of(refused)["code"]) == (503, "overloaded")
    for connection in stalled:
        connection.close()
    while upload(storing).status_code != 200 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert upload(storing).status_code == 200


def test_a_stalled_upload_is_ended_and_a_steady_one_may_take_long() -> None:
    config = replace(Scene().config, body_timeout_s=0.5)
    with running(Scene(config=config)) as server:
        line = b'{"a": "' + b"x" * 262_000 + b'"}\n'
        request = httpx.Request("POST", server.base_url, data={"purpose": "batch"}, files={"file": ("a", line * 16)})
        body, headers = request.read(), {"content-type": request.headers["content-type"]}

        def slow(pause_s: float) -> Iterator[bytes]:
            for start in range(0, len(body), 262_144):
                time.sleep(pause_s)
                yield body[start : start + 262_144]

        steady = httpx.post(server.base_url + FILES, content=slow(0.05), headers=headers, timeout=30)
        assert steady.status_code == 200, "0.8 s together, but each step within its time"
        stalled = httpx.post(server.base_url + FILES, content=slow(0.3), headers=headers, timeout=30)
        assert (stalled.status_code, error_of(stalled)["code"]) == (408, "body_timeout")


def test_a_data_directory_that_cannot_be_used_costs_the_files_alone(tmp_path: Path) -> None:
    with running() as server:
        server.storage.folder.parent.joinpath("data").write_text("a file where the directory should be")
        server.say("hi")
        with httpx.Client(base_url=server.base_url) as http:
            for answer in (http.get(FILES), http.post(FILES, data={"purpose": "batch"}, files={"file": ("a", LINES)})):
                assert (answer.status_code, error_of(answer)["code"]) == (503, "storage_unavailable")
                assert "data" in error_of(answer)["message"] and str(server.storage.folder) not in answer.text
            assert http.post("/v1/completions", json=completion()).status_code == 200
            assert http.get("/health").status_code == 200
            server.storage.folder.unlink()
            assert http.get(FILES).json()["data"] == []
