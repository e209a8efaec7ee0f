from __future__ import annotations

import pytest

from service.api.request_headers import header_of

HEADERS = [(b"a", b"1"), (b"b", b"\xe9"), (b"a", b"2")]


@pytest.mark.parametrize(("name", "value"), [(b"a", "1"), (b"b", "é"), (b"c", "")])
def test_the_first_header_of_a_name(name: bytes, value: str) -> None:
    assert header_of({"headers": HEADERS}, name) == value
