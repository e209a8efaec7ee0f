from __future__ import annotations

import logging

import pytest

from service.core.rare_warning import EVERY_S, RareWarning
from tests.manual_clock import ManualClock


def test_it_is_told_now_and_then_and_how_often_it_came(caplog: pytest.LogCaptureFixture):
    clock = ManualClock()
    warning = RareWarning(logging.getLogger("headrace"), "of %s: %d", clock.now_s)
    for _ in range(5):
        warning.tell("noise")
    clock.advance(EVERY_S + 1)
    warning.tell("noise")
    warning.tell("noise")
    assert [record.getMessage() for record in caplog.records] == ["of noise: 1", "of noise: 5"]


def test_of_a_fault_the_traceback_is_told(caplog: pytest.LogCaptureFixture):
    warning = RareWarning(logging.getLogger("headrace"), "so often: %d", of_fault=True)
    try:
        raise OSError("the disk is full")
    except OSError:
        warning.tell()
    assert "the disk is full" in caplog.text
