"""A device that stops answering: told to the health check, to the streams, and by the exit status."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx

from tests.deploy.health_check import check_health
from tests.e2e.server_process import ServerProcess, write_dummy_folder

BODY = {"model": "dummy", "prompt": "x", "max_tokens": 50, "ignore_eos": True, "stream": True}


def test_health_fails_then_streams_are_told_then_the_process_ends_with_a_status(tmp_path: Path):
    flags = "--load-format dummy --device cpu --kv-cache-memory 8MiB --watchdog-timeout 6".split()
    lines: list[str] = []

    def read() -> None:
        with httpx.stream("POST", f"{server.url}/v1/completions", json=BODY, timeout=60) as response:
            lines.extend(line for line in response.iter_lines() if line)

    with ServerProcess(
        str(write_dummy_folder(tmp_path / "dummy")), *flags, module="tests.e2e.hanging_device"
    ) as server:
        assert check_health(server.url) == 0
        reader = threading.Thread(target=read)
        reader.start()
        deadline_s = time.monotonic() + 20
        while (health := httpx.get(f"{server.url}/health")).status_code == 200:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert health.json()["status"] == "stuck"
        assert check_health(server.url) == 1
        assert httpx.get(f"{server.url}/ready").status_code == 200, "only an orchestrator is to act, not a balancer"
        assert server.wait(30) == 1
        reader.join(10)
    assert lines[-1] == "data: [DONE]"
    assert lines[-2].startswith('data: {"error":')
    assert '"choices"' in lines[0], "its first tokens had come"
    log = "".join(server.log)
    assert "an iteration has not come to an end for 6 s" in log
    assert "hanging_device.py" in log, "the log tells where each thread is"
