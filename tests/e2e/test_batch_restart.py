"""A batch over the end of its server and the start of the next one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server_process import ServerProcess, write_dummy_folder

NUM_LINES = 40
OPTIONS = "--load-format dummy --device cpu --dtype float32 --kv-cache-memory 32MiB --max-num-seqs 8".split()


def _line(number: int) -> bytes:
    """Short ones first. The long ones take longer than any test."""
    body = {"model": "dummy", "prompt": [number], "max_tokens": 2 if number < 4 else 4000, "ignore_eos": True}
    return json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}).encode()


def _begin(url: str) -> str:
    content = b"\n".join(map(_line, range(NUM_LINES)))
    file = httpx.post(f"{url}/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}).json()
    fields = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(httpx.post(f"{url}/v1/batches", json=fields).json()["id"])


def _batch(url: str, batch_id: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/v1/batches/{batch_id}").json()
    return found


def test_sigterm_waits_for_no_line_and_the_next_server_goes_on(tmp_path: Path):
    model = write_dummy_folder(tmp_path / "model")
    command = (str(model), *OPTIONS, "--served-model-name", "dummy", "--data-dir", str(tmp_path / "data"))
    with ServerProcess(*command, "--shutdown-timeout", "60") as server:
        batch_id = _begin(server.url)
        deadline_s = time.monotonic() + 30
        while (
            _batch(server.url, batch_id)["request_counts"]["completed"] < 4
            or server.gauge("headrace_requests_running") < 1
        ):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        server.terminate()
        began_s = time.monotonic()
        assert server.wait(50) == 0
        assert time.monotonic() - began_s < 10
        assert "Traceback" not in "".join(server.log)
    with ServerProcess(*command) as server:
        batch = _batch(server.url, batch_id)
        assert batch["status"] == "in_progress"
        deadline_s = time.monotonic() + 30
        while server.gauge("headrace_requests_running") < 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        batch = _batch(server.url, batch_id)
        assert batch["request_counts"] == {"total": NUM_LINES, "completed": 4, "failed": 0}
        httpx.post(f"{server.url}/v1/batches/{batch_id}/cancel")
        while (batch := _batch(server.url, batch_id))["status"] != "cancelled":
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        answers = httpx.get(f"{server.url}/v1/files/{batch['output_file_id']}/content").text.splitlines()
    assert sorted(json.loads(answer)["custom_id"] for answer in answers) == list("0123")
