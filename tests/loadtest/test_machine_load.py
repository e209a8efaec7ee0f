import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest import machine_load
from loadtest.machine_load import CpuTicks, read_cpu_ticks, share_of_others_during, wait_until_free

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="counters are Linux's")

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def _own() -> int:
    ticks = read_cpu_ticks()
    assert ticks is not None
    return ticks.own


def test_share_of_others_leaves_out_idle_and_own_time() -> None:
    assert CpuTicks(1000, 500, 100).share_of_others(CpuTicks(1200, 600, 160)) == pytest.approx(0.2)
    assert CpuTicks(1000, 500, 100).share_of_others(CpuTicks(1000, 500, 100)) == 0.0


def test_children_are_own_while_they_run_and_after() -> None:
    before = _own()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert _own() - before >= 25
    child = subprocess.Popen([sys.executable, "-c", f"{BURN}\ntime.sleep(60)"])
    before, deadline = _own(), time.monotonic() + 30
    while _own() - before < 25 and time.monotonic() < deadline:
        time.sleep(0.05)
    child.kill()
    child.wait()
    assert time.monotonic() < deadline


def test_unknown_where_there_are_no_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "_PROC", tmp_path)
    assert share_of_others_during(lambda: 7.0) == (7.0, None)
    wait_until_free(0.0, 10.0)


def test_waiting_ends_when_free_or_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([CpuTicks(0, 0, 0), CpuTicks(100, 0, 0), CpuTicks(100, 0, 0), CpuTicks(200, 99, 0)])
    monkeypatch.setattr(machine_load, "read_cpu_ticks", lambda: next(ticks))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    wait_until_free(0.05, 10.0)
    assert next(ticks, None) is None
    wait_until_free(0.05, 0.0)
