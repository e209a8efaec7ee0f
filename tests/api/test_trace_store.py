from __future__ import annotations

from service.api.call_trace import CallTrace
from service.api.calls.request_building import CallHead
from service.api.trace_store import MAX_TRACES, TraceStore
from service.core.request import Request
from service.core.sampling_params import SamplingParams


def trace(call_id: str, client: str) -> CallTrace:
    head = CallHead(call_id, created=1, arrival_s=10.0, client=client)
    return CallTrace(head, "m", [Request("r0", (1, 2), SamplingParams(max_tokens=5), 10.0)])


def test_keeps_the_last_ones() -> None:
    store = TraceStore()
    for index in range(MAX_TRACES + 2):
        store.add(trace(f"c{index}", ""))
    kept = [store.get(f"c{index}", "") is not None for index in range(MAX_TRACES + 2)]
    assert kept == [False, False, *[True] * MAX_TRACES]


def test_shows_a_trace_to_its_owner_only() -> None:
    store = TraceStore()
    store.add(trace("c", "ann"))
    assert store.get("c", "ann") is not None
    assert store.get("c", "bob") is None
    assert store.get("c", "") is None
