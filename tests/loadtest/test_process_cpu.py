import os
import time

import pytest

from loadtest.process_cpu import CpuUse


def test_counts_what_a_process_computes() -> None:
    with CpuUse(os.getpid()) as use:
        began_s = time.process_time()
        while time.process_time() - began_s < 0.1:
            pass
    assert use.seconds == pytest.approx(0.1, abs=0.05)
