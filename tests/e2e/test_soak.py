"""Some seconds of `make soak`. Its bounds are wide: caches still fill, and two rests show no slope."""

from __future__ import annotations

import json

import pytest

from loadtest.soak.__main__ import main
from tests.examples import FACTOR

FLAGS = (
    f"--minutes {0.06 * FACTOR} --round-seconds 1.8 --clients 10 --large-rounds 0"
    " --max-growth-mb 200 --max-slope inf --rest-within 5"
).split()


@pytest.mark.usefixtures("forked_servers")
def test_nothing_is_left_of_hostile_clients_and_nobody_else_notices(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(FLAGS)
    printed = capsys.readouterr().out
    assert status == 0, printed
    found = json.loads(printed.splitlines()[-1])
    assert found["good"]
    assert found["num_golden"] >= 2
    assert found["exit_status"] == 0
    assert all(found["seen"].get(kind, 0) > 5 for kind in ("200", "400", "wait", "leave")), found["seen"]
