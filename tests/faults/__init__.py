import pytest

pytest.register_assert_rewrite("tests.faults.anomaly_loop", "tests.faults.engine_scene")
