"""curl against the real service, as the README shows it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.clients.conftest import MODEL
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def curl(*arguments: str) -> str:
    return subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def body(**fields: object) -> str:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "What is Headrace?"}], **fields})


def test_whole_and_streamed(server: ServerProcess) -> None:
    url, kind = f"{server.url}/v1/chat/completions", "content-type: application/json"
    whole = json.loads(curl(url, "-H", kind, "-d", body(temperature=0)))
    text = whole["choices"][0]["message"]["content"]
    lines = curl("-N", url, "-H", kind, "-d", body(temperature=0, stream=True)).splitlines()
    assert lines[-2] == "data: [DONE]" or lines[-1] == "data: [DONE]"
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == text


def test_errors_and_headers(server: ServerProcess) -> None:
    shown = curl("-i", f"{server.url}/v1/models/none", "-H", "x-request-id: mine")
    assert shown.startswith("HTTP/1.1 404")
    assert "x-request-id: mine" in shown.lower()
    assert '"code":"model_not_found"' in shown


def test_a_constraint(server: ServerProcess) -> None:
    answer = curl(
        f"{server.url}/v1/chat/completions",
        *("-H", "content-type: application/json", "-d", body(choice=["yes", "no"], seed=1)),
    )
    assert json.loads(answer)["choices"][0]["message"]["content"] in ("yes", "no")
