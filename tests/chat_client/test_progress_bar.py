from __future__ import annotations

import io
import time

import pytest

from service.chat_client.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_watches_sees_one_line_that_fills() -> None:
    terminal = Terminal()
    bar = ProgressBar(terminal, "requests")
    for num_done in (0, 5, 10):
        bar.show(num_done, num_done // 5, 10)
    bar.end()
    frames = terminal.getvalue().split("\r")[1:]
    assert [frame.count("#") for frame in frames] == [0, 15, 30]
    assert "10/10 requests" in frames[-1]
    assert "2 failed" in frames[-1]
    assert terminal.getvalue().count("\n") == 1


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    log = io.StringIO()
    bar = ProgressBar(log, "requests")
    for _ in range(100):
        now_s[0] += 1.0
        bar.show(int(now_s[0]), 0, 100)
    bar.end()
    assert len(log.getvalue().splitlines()) == 10
    assert "\r" not in log.getvalue()
