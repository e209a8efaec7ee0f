from __future__ import annotations

from prometheus_client import CollectorRegistry

from service.metrics.stored_state import StoredState, StoredStateGauges


def test_shows_the_state_of_the_moment_with_every_series_from_the_start():
    states = [
        StoredState(0, 9, {}, 0, 0, {}),
        StoredState(5, 9, {"in_progress": 2}, 3, 8, {"completed": 4, "failed": 1}),
    ]
    for state in states:
        registry = CollectorRegistry()
        registry.register(StoredStateGauges(lambda state=state: state))
        seen = {
            name: registry.get_sample_value(name)
            for name in (
                *("headrace_storage_bytes", "headrace_storage_limit_bytes"),
                *("headrace_batch_lines_running", "headrace_batch_lines_left"),
            )
        }
        assert seen == {
            "headrace_storage_bytes": state.num_bytes,
            "headrace_storage_limit_bytes": 9,
            "headrace_batch_lines_running": state.num_lines_running,
            "headrace_batch_lines_left": state.num_lines_left,
        }
        for status in ("validating", "in_progress", "finalizing", "cancelling"):
            value = registry.get_sample_value("headrace_batches", {"status": status})
            assert value == state.batches.get(status, 0)
        for outcome in ("completed", "failed"):
            value = registry.get_sample_value("headrace_batch_lines_total", {"outcome": outcome})
            assert value == state.lines.get(outcome, 0)
