"""The traces of the last calls."""

from __future__ import annotations

from collections import OrderedDict

from service.api.call_trace import CallTrace

MAX_TRACES = 1000


class TraceStore:
    """The last MAX_TRACES calls by their ids. Event-loop thread only."""

    def __init__(self) -> None:
        self._traces: OrderedDict[str, CallTrace] = OrderedDict()

    def add(self, trace: CallTrace) -> None:
        self._traces[trace.head.call_id] = trace
        if len(self._traces) > MAX_TRACES:
            self._traces.popitem(last=False)

    def get(self, call_id: str, client: str) -> CallTrace | None:
        """None if there is none, or if it is somebody else's."""
        trace = self._traces.get(call_id)
        return trace if trace is not None and trace.head.client == client else None
