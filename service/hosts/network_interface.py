"""Finds the network interface with an address, for gloo and NCCL when hosts reach each other over it."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IPV6 = Path("/proc/net/if_inet6")


def interface_of(address: str) -> str | None:
    """None if no interface has it as its first address; gloo and NCCL choose then."""
    told = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(told, ipaddress.IPv6Address) and told.ipv4_mapped is not None:
        told = told.ipv4_mapped
    if told.is_loopback:
        return "lo"
    if isinstance(told, ipaddress.IPv6Address):
        return _of_ipv6(told)
    return next((name for _, name in socket.if_nameindex() if _first_ipv4(name) == told), None)


def _first_ipv4(name: str) -> ipaddress.IPv4Address | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:  # it has no IPv4 address
            return None
    return ipaddress.IPv4Address(answer[20:24])


def _of_ipv6(address: ipaddress.IPv6Address) -> str | None:
    if not _IPV6.is_file():
        return None
    lines = (line.split() for line in _IPV6.read_text().splitlines())
    return next((name for told, *_, name in lines if ipaddress.IPv6Address(bytes.fromhex(told)) == address), None)
