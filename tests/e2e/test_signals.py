"""Signals to end, at the moments when it is hardest to heed them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, write_dummy_folder

ROOT = Path(__file__).parents[2]
DUMMY = "--load-format dummy --device cpu --kv-cache-memory 8MiB --served-model-name dummy".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dummy_folder(tmp_path_factory.mktemp("model") / "dummy")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("library", ["pydantic_core", "uvloop", "libtorch"])
def test_sigterm_while_libraries_are_imported_ends_it_with_status_0_and_a_word(folder: Path, library: str):
    with ServerProcess(str(folder), *DUMMY, wait_until_ready=False, executed=True) as server:
        maps = Path(f"/proc/{server.process.pid}/maps")
        deadline_s = time.monotonic() + 30
        while library not in maps.read_text():
            assert time.monotonic() < deadline_s
            time.sleep(0.002)
        server.terminate()
        assert server.wait(20) == 0
        log = "".join(server.log)
        assert "SIGTERM" in log
        assert "Traceback" not in log


def test_a_second_sigterm_ends_at_once_what_never_returns_and_its_stream_is_told(folder: Path):
    lines: list[str] = []

    def read() -> None:
        body = {"model": "dummy", "prompt": "x", "max_tokens": 50, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines.extend(line for line in response.iter_lines() if line)

    with ServerProcess(str(folder), *DUMMY, module="tests.e2e.hanging_device") as server:
        reader = threading.Thread(target=read)
        reader.start()
        deadline_s = time.monotonic() + 10
        while len(lines) < 3:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        server.terminate()
        server.wait_for_line("SIGTERM: ending in order")
        server.terminate()
        started_s = time.monotonic()
        assert server.process.wait(20) == 0
        assert time.monotonic() - started_s < 3, "0.4 s, and what a busy machine adds"
        reader.join(10)
    assert lines[-1] == "data: [DONE]"
    assert lines[-2].startswith('data: {"error":')


def test_a_second_sigterm_while_it_loads_ends_at_once(folder: Path):
    with ServerProcess(str(folder), *DUMMY, wait_until_ready=False) as server:
        server.wait_for_line("Application startup complete")
        server.terminate()
        server.terminate()
        started_s = time.monotonic()
        assert server.process.wait(20) == 0
        assert time.monotonic() - started_s < 3


def test_too_few_open_files_refuse_the_start_in_a_sentence(folder: Path):
    command = [sys.executable, "-m", "service", "serve", "--port", "0", str(folder), *DUMMY]
    limited = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 1
    assert "the limit is 64 (ulimit -n), but at least 116 are needed" in done.stderr
    assert "Traceback" not in done.stderr
