from __future__ import annotations

from service.prediction.execution_time import ExecutionTime


def test_the_devices_clock_counts_where_there_is_one():
    assert ExecutionTime(0.5).seconds == 0.5
    assert ExecutionTime(0.5, compute_s=0.3).seconds == 0.3
    assert ExecutionTime(0.0).seconds > 0 and ExecutionTime(0.5, compute_s=0.0).seconds > 0
