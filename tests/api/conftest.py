from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.api.running_server import RunningServer, running


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.fixture
def server(_shared_server: RunningServer) -> Iterator[RunningServer]:
    """The server as `Scene` sets it up; after the test nothing may be left of its requests."""
    _shared_server.reset()
    _shared_server.check_well()
    yield _shared_server
    _shared_server.executor.gate.set()
    _shared_server.check_idle()


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, timeout=10) as client:
        yield client
