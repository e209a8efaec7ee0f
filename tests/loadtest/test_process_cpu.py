import os
import time

import pytest

from loadtest.process_cpu import cpu_seconds


def test_counts_what_a_process_computes() -> None:
    before = cpu_seconds(os.getpid())
    began_s = time.process_time()
    while time.process_time() - began_s < 0.1:
        pass
    assert cpu_seconds(os.getpid()) - before == pytest.approx(0.1, abs=0.05)
