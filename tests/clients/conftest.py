from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.server_process import ServerProcess

MODEL = "headrace-quickstart"


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """What `make serve` starts."""
    with ServerProcess("--device", "cpu", "--dtype", "float32") as server:
        yield server


@pytest.fixture
def base_url(server: ServerProcess) -> str:
    return f"{server.url}/v1"
