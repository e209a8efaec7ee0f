from __future__ import annotations

import pytest

from service.settings.service_links import is_service_link


@pytest.mark.parametrize(
    ("variable", "value", "is_link"),
    [
        ("HEADRACE_PORT", "tcp://10.0.0.1:80", True),
        ("HEADRACE_PORT", "8000", False),
        ("HEADRACE_ROUTER_PORT", "udp://10.0.0.1:80", True),
        ("HEADRACE_ROUTER_PORT", "80", False),
        ("HEADRACE_SERVICE_HOST", "10.0.0.1", True),
        ("HEADRACE_SERVICE_PORT_HTTP", "80", True),
        ("HEADRACE_PORT_80_TCP_ADDR", "10.0.0.1", True),
        ("HEADRACE_PORT_TCP", "tcp://10.0.0.1:80", False),
        ("HEADRACE_HOST", "10.0.0.1", False),
        ("ANOTHER_SERVICE_HOST", "10.0.0.1", False),
    ],
)
def test_a_link_is_told_from_a_setting(variable: str, value: str, is_link: bool):
    assert is_service_link(variable, value) is is_link
