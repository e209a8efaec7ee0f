from __future__ import annotations

import pytest

from service.settings.http_settings import is_loopback


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, is_it: bool):
    assert is_loopback(host) is is_it
