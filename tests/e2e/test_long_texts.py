"""Long texts, again and again: what they took is given back."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess
from tests.examples import examples

MEGABYTE = 2**20
GROWTH = 100 * MEGABYTE
WORDS = "The quick brown fox jumps over the lazy dog. "


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from Linux's /proc")
def test_memory_does_not_grow_with_them() -> None:
    with ServerProcess() as server, httpx.Client(base_url=server.url, timeout=60) as http:

        def tokenize(text: str) -> int:
            return http.post("/tokenize", json={"prompt": text}).status_code

        assert tokenize(WORDS * 100) == 200
        first = resident_bytes(server)
        for _ in range(examples(2)):
            assert tokenize("7" * 7_900_000) == 400
            assert tokenize((WORDS * 200_000)[:7_900_000]) == 400
            assert tokenize((WORDS * 24_000)[:MEGABYTE]) == 200
            assert tokenize("7 " * 100_000) == 200
        deadline_s = time.monotonic() + 20
        while (grown := resident_bytes(server) - first) > GROWTH and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert grown <= GROWTH


def resident_bytes(server: ServerProcess) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
