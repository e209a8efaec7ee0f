"""Some seconds of `make fuzz`."""

from __future__ import annotations

import json

import pytest

from loadtest.fuzz.__main__ import main
from tests.examples import examples

CASES = examples(600)
FLAGS = f"--cases {CASES} --stall-every 0 --max-growth-mb 200".split()


@pytest.mark.usefixtures("forked_servers")
def test_every_request_has_one_answer_or_its_connection_ends(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(FLAGS)
    printed = capsys.readouterr().out
    assert status == 0, printed
    found = json.loads(printed.splitlines()[-1])
    assert found["good"]
    assert found["cases"] == CASES
    told = found["statuses"]
    assert all(told.get(answer, 0) > CASES // 80 for answer in ("200", "400", "404", "405")), told
