"""How many files the process may open: a connection is one, and many systems allow 1,024 unless asked for more."""

from __future__ import annotations

import resource

from service.errors import ConfigError

_FILES_BESIDE = 100
"""For libraries, threads, the log and the model."""

_FEWEST_CONNECTIONS = 16
"""With fewer, monitoring and a load balancer could take them all."""


def connections_allowed(wanted: int) -> int:
    """How many of `wanted` connections are possible; raises the limit as far as the system allows without root.

    ConfigError if that is too few for a service.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fewest = _FILES_BESIDE + min(wanted, _FEWEST_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < fewest:
        raise ConfigError(f"open files: the limit is {soft} (ulimit -n), but at least {fewest} are needed")
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - _FILES_BESIDE)
