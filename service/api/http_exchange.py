"""A request that has been answered, for the access log and the traces."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

from service.api.call_trace import CallTrace

PROBES = frozenset({"/health", "/ready", "/ping", "/metrics"})
"""Routes that probes and scrapers ask again and again. They are counted, and not recorded otherwise."""

_TRACE, _ERROR = "call_trace", "error_code"


class HttpExchange(NamedTuple):
    """route: the template; method: the client's, or `other`. began_ns: Unix time. state: of the ASGI scope."""

    route: str
    method: str
    status: int
    began_ns: int
    seconds: float
    headers: list[tuple[bytes, bytes]]
    state: MutableMapping[str, Any]

    @property
    def request_id(self) -> str:
        return str(self.state["request_id"])

    @property
    def client(self) -> str:
        """See `client_of`."""
        return str(self.state.get("client", ""))

    @property
    def call(self) -> CallTrace | None:
        """The trace of the call; None if the engine was not asked."""
        return self.state.get(_TRACE)

    @property
    def error_code(self) -> str | None:
        """The code of a refusal, as `headrace_rejections_total` counts it."""
        return self.state.get(_ERROR)


HttpWatcher = Callable[[HttpExchange], None]
"""Called on the event-loop thread when an answer has ended, in whatever way, except for PROBES."""


def note_call(state: MutableMapping[str, Any], trace: CallTrace | None) -> None:
    state[_TRACE] = trace


def note_error(state: MutableMapping[str, Any], code: str) -> None:
    state[_ERROR] = code
