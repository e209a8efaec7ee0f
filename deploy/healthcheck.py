"""HEALTHCHECK of the container: ends with status 0 if and only if GET /health is answered with 200 in time.

/health is 503 while the model loads, while the server drains and when an iteration is stuck; a process that hangs
altogether does not answer. Standard library only, and no proxy on the way.
"""

from __future__ import annotations

import os
import sys
from http.client import HTTPConnection, HTTPException

WITHIN_S = 4.0
ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def main() -> int:
    """The exit status; what is wrong goes to stdout, which `docker inspect` shows."""
    host = os.environ.get("HEADRACE_HOST", "")
    connection = HTTPConnection(
        ALL_ADDRESSES.get(host, host), int(os.environ.get("HEADRACE_PORT", "8000")), timeout=WITHIN_S
    )
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        print(answer.status, answer.read(200).decode())
    except (OSError, HTTPException) as fault:
        print(f"no answer: {fault!r}")
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
