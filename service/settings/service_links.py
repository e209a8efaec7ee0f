"""Variables that Kubernetes adds to every pod for a Service called `headrace` (or `headrace-...`).

HEADRACE_SERVICE_HOST, HEADRACE_PORT_80_TCP_ADDR and so on, as for Docker's links: they begin like our settings.
"""

from __future__ import annotations

import re

_LINK = re.compile(r"HEADRACE_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_PORT = re.compile(r"HEADRACE_(\w+_)?PORT")  # also a setting, if its value is not such an address
_PORT_VALUE = re.compile(r"(tcp|udp|sctp)://.*")


def is_service_link(variable: str, value: str) -> bool:
    is_port = _PORT.fullmatch(variable) is not None and _PORT_VALUE.fullmatch(value) is not None
    return is_port or _LINK.fullmatch(variable) is not None
