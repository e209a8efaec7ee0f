"""A log that nobody reads holds up nothing: not the requests, not the end, not the watchdog."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, write_dummy_folder

FLAGS = "--load-format dummy --device cpu --kv-cache-memory 8MiB --access-log --log-format text".split()
LONG_ID = "x" * 64
ASK = f"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {LONG_ID}\r\n\r\n".encode()
AT_ONCE = 8
NUM_REQUESTS = 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dummy_folder(tmp_path_factory.mktemp("model") / "dummy")


def ask(url: str, num_requests: int) -> None:
    """So many requests, all answered."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        for _ in range(num_requests // AT_ONCE):
            connection.sendall(ASK * AT_ONCE)
            answers = b""
            while answers.count(b"HTTP/1.1 200 ") < AT_ONCE or not answers.endswith(b"}"):
                piece = connection.recv(65536)
                assert piece, "the connection was closed"
                answers += piece


def lines_of(server: ServerProcess) -> Iterator[str]:
    assert server.process.stderr is not None
    return iter(server.process.stderr.readline, "")


def test_requests_are_answered_the_log_goes_on_when_it_is_read_again_and_sigterm_ends_it(folder: Path):
    with ServerProcess(str(folder), *FLAGS) as server:
        ask(server.url, NUM_REQUESTS)
        assert server.gauge("headrace_log_lines_lost_total") > 0, "what waits to be written is bounded"
        num_written = 0
        for line in lines_of(server):
            if "lines of the log were lost" in line:
                num_lost = int(line.rsplit(maxsplit=1)[1])
                break
            num_written += "GET /version 200" in line
        assert num_written + num_lost in (NUM_REQUESTS, NUM_REQUESTS + 1), "with that of the metrics"
        httpx.get(f"{server.url}/v1/models")
        server.wait_for_line("/v1/models 200")
        ask(server.url, 2000)
        started_s = time.monotonic()
        server.terminate()
        assert server.process.wait(20) == 0
        assert time.monotonic() - started_s < 10


@pytest.mark.parametrize("stuck", ["device", "interpreter"])
def test_the_watchdog_ends_it_with_status_1(folder: Path, stuck: str):
    flags = [*FLAGS, "--watchdog-timeout", "2"]
    with ServerProcess(str(folder), *flags, module=f"tests.e2e.hanging_{stuck}") as server:
        ask(server.url, 1600)
        body = {"model": "dummy", "prompt": "x", "max_tokens": 50, "ignore_eos": True}
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=20).raise_for_status()
        assert server.process.wait(20) == 1
