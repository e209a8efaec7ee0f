"""How many files the process may have open: a connection is one, and many systems allow 1,024 unless asked for more."""

from __future__ import annotations

import resource

_FILES_BESIDE = 100
"""Of libraries, threads, the log and the model."""


def connections_allowed(wanted: int) -> int:
    """How many of `wanted` connections there can be; asks the system for as many as it grants without being root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _FILES_BESIDE))
