from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.chat_client.batch_command import main
from tests.api.running_server import RunningServer, running
from tests.e2e.server_process import write_dummy_folder


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def write(folder: Path, *requests: object) -> tuple[str, Path]:
    path = folder / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)))
    return str(path), folder / "out.jsonl"


def test_a_running_server_answers_the_file(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say("hi there")
    file, out = write(tmp_path, *({"prompt": f"number {n}"} for n in range(50)))
    assert main([file, "--out", str(out), "--url", server.base_url]) == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(1, 51))
    assert {answer["response"]["body"]["choices"][0]["text"] for answer in answers} == {"hi there"}
    assert "completed: 50 answers and 0 errors of 50 requests" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.part"))


def test_a_request_that_is_refused_is_an_error_of_the_command(server: RunningServer, tmp_path: Path) -> None:
    file, out = write(tmp_path, {"prompt": "x"}, {"prompt": 1.5})
    assert main([file, "--out", str(out), "--url", server.base_url]) == 1
    statuses = [json.loads(line)["response"]["status_code"] for line in out.read_text().splitlines()]
    assert sorted(statuses) == [200, 400]


def test_a_file_that_cannot_be_run_is_told_of_and_leaves_the_output(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write(tmp_path, {"prompt": "x"}, {"messages": []})
    out.write_text("of yesterday")
    assert main([file, "--out", str(out), "--url", server.base_url]) == 1
    assert "line 2: url must be the batch's endpoint" in capsys.readouterr().err
    for wrong, message in (([file, "--out", str(out), "--url", "http://127.0.0.1:1"], "does not answer"),):
        assert main(wrong) == 1
        assert message in capsys.readouterr().err
    assert main([file, "--out", str(out), "--url", server.base_url, "--", "--dtype", "float32"]) == 2
    assert out.read_text() == "of yesterday"


def test_a_model_is_loaded_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_dummy_folder(tmp_path / "model")
    file, out = write(tmp_path, *({"prompt": f"number {n}", "max_tokens": 3} for n in range(5)))
    options = ["--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "16MiB"]
    assert main([file, "--out", str(out), "--model", str(model), "--", *options]) == 0
    assert len(out.read_text().splitlines()) == 5
    capsys.readouterr()
    assert main([file, "--out", str(out), "--", "--no-such-setting"]) == 1
    told = capsys.readouterr().err
    assert "the model could not be served" in told
    assert "no-such-setting" in told
