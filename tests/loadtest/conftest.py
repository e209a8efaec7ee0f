"""A stub server with known timings, one for all tests of this folder."""

from collections.abc import Iterator

import pytest

from loadtest.stub_server import running_stub

TTFT_S = 0.1
ITL_S = 0.01


@pytest.fixture(scope="session")
def stub_url() -> Iterator[str]:
    with running_stub("--ttft-ms", str(TTFT_S * 1e3), "--itl-ms", str(ITL_S * 1e3)) as url:
        yield url


@pytest.fixture(scope="session")
def fast_stub_url() -> Iterator[str]:
    with running_stub() as url:
        yield url
