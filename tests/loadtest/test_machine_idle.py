import time
from pathlib import Path

import pytest

from loadtest import machine_idle


def test_share_follows_the_kernels_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 0 1000 0 0 0 0 0 0\n")
    monkeypatch.setattr(machine_idle, "_STAT", stat)
    monkeypatch.setattr(time, "sleep", lambda _: stat.write_text("cpu  130 0 10 1050 10 0 0 0 0 0\n"))
    assert machine_idle.idle_share() == pytest.approx(0.6)


def test_unknown_where_there_are_no_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_idle, "_STAT", tmp_path / "none")
    assert machine_idle.idle_share(0.0) is None
    assert machine_idle.wait_until_idle(0.9, 10.0) is None


def test_waiting_ends_when_idle_or_late(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.1, 0.5, 0.95])
    monkeypatch.setattr(machine_idle, "idle_share", lambda: next(shares))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert machine_idle.wait_until_idle(0.9, 10.0) == 0.95
    monkeypatch.setattr(machine_idle, "idle_share", lambda: 0.2)
    assert machine_idle.wait_until_idle(0.9, 0.0) == 0.2
