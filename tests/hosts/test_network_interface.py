from __future__ import annotations

import socket

import pytest

from service.hosts.network_interface import interface_of


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_los(address: str):
    assert interface_of(address) == "lo"


def test_an_address_of_nobody_here_has_none():
    assert interface_of("192.0.2.77") is None
    assert interface_of("2001:db8::77") is None


def test_this_hosts_own_address_is_of_an_interface_of_it():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this host has no other address")
        assert interface_of(asking.getsockname()[0]) in [name for _, name in socket.if_nameindex()]
