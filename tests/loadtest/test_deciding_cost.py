from __future__ import annotations

import pytest

from loadtest import deciding_cost
from loadtest.deciding_cost import main, measure


def test_every_cell_is_measured(capsys: pytest.CaptureFixture[str]):
    main(["--seqs", "2", "--context", "230", "--block-sizes", "1,16", "--rounds", "1"])
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0].strip(), row[1].strip(), row[2].strip()) for row in rows] == [
        ("2", "1", "off"),
        ("2", "1", "on"),
        ("2", "16", "off"),
        ("2", "16", "on"),
    ]
    assert all(float(cell) > 0 for row in rows for cell in row[3:])


def test_only_full_iterations_that_decode_count():
    cost = measure(3, 230, 16, caching=False)
    assert 0 < cost.decide_ms <= cost.decide_median_ms


def test_a_context_too_short_to_be_generated_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--context", "200"])
    assert "--context 200: more than 200" in capsys.readouterr().err


def test_every_policy_is_measured_in_traffic(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deciding_cost, "NUM_WAITING", 5)
    main(["--traffic", "--seqs", "4", "--iterations", "40"])
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[1].strip() for row in rows] == ["fcfs", "priority", "shares", "fair"]
    assert all(float(cell) > 0 for row in rows for cell in row[2:])


def test_iterations_are_told_apart_by_who_comes_and_who_goes(capsys: pytest.CaptureFixture[str]):
    main(["--arrivals", "--seqs", "8", "--iterations", "400"])
    kinds = {line.split("|")[2].strip() for line in capsys.readouterr().out.splitlines()[2:]}
    assert kinds == {"neither", "end", "start", "start, end"}
