from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

MODEL = "headrace-quickstart"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """What `make serve` starts, with a chat template that speaks of tools, as larger models have."""
    template = Path(__file__).with_name("tools.jinja")
    with ServerProcess("--device", "cpu", "--dtype", "float32", "--chat-template", str(template)) as server:
        yield server


@pytest.fixture
def base_url(server: ServerProcess) -> str:
    return f"{server.url}/v1"
