from __future__ import annotations

import subprocess
import sys

import pytest

from service.ray_serve.replica import BUSY, WAITING, load_of

ENDS = """
import threading, time
from service.ray_serve import replica
class Server:
    def __init__(self, run, flags, environment): pass
    def wait(self): return time.sleep(0.2)
    def stop(self, within_s): time.sleep(0.5)
replica.ServerProcess = Server
made = replica.Replica([], [], None)
{then}
"""


@pytest.mark.parametrize(
    ("running", "used", "max_running", "busy"),
    [(3, 0.1, 4, 0.75), (3, 0.9, 4, 0.9), (9, 0.1, 4, 1.0), (3, 0.25, None, 0.25)],
)
def test_as_busy_as_the_scarcer_of_memory_and_seats(running: int, used: float, max_running: int | None, busy: float):
    text = f"""# TYPE headrace_requests_running gauge
headrace_requests_running {running}.0
# TYPE headrace_requests_waiting gauge
headrace_requests_waiting 7.0
# TYPE headrace_kv_blocks_used_ratio gauge
headrace_kv_blocks_used_ratio {used}
"""
    assert load_of(text, max_running) == {WAITING: 7.0, BUSY: busy}


@pytest.mark.parametrize(("then", "status"), [("time.sleep(30)", 1), ("made.__del__()", 0)])
def test_a_replica_ends_with_its_server_unless_it_has_stopped_it(then: str, status: int):
    done = subprocess.run([sys.executable, "-c", ENDS.format(then=then)], timeout=60, capture_output=True)
    assert done.returncode == status, done.stderr
