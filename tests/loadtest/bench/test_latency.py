from __future__ import annotations

import pytest

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.latency import latency_json, measure_latency, print_latency, slope_of
from loadtest.bench.model_limits import ModelCosts
from tests.engine.harness import Harness

COSTS = ModelCosts(1000, 2000, 200, 10, 50, (None, None))
LIMITS = DeviceLimits("toy", 1e9, 1e9)


def test_one_row_a_batch_size(capsys):
    engine = Harness(num_blocks=200, max_num_batched_tokens=64).engine
    rows = measure_latency(engine, COSTS, LIMITS, (1, 4), (5, 40), vocab_size=1000)
    assert [row.batch_size for row in rows] == [1, 4]
    for row in rows:
        assert 0 < row.step_ms < row.prefill_ms + 40 * row.step_ms
        assert row.tpot_ms > 0
        assert row.tokens_per_s == pytest.approx(row.batch_size / row.step_ms * 1e3)
        assert row.step_limit_ms == pytest.approx(1e3 * COSTS.decode_step_s(LIMITS, row.batch_size, 25))
        assert row.slope_ms is not None
        assert row.slope_limit_ms == pytest.approx(1e3 * 50 / 1e9)
    print_latency(rows)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.startswith("batch  step ms  limit ms")
    assert (first.split()[0], second.split()[0]) == ("1", "4")
    assert latency_json(rows)[1]["share_of_limit"] == rows[1].step_limit_ms / rows[1].step_ms


def test_a_run_too_short_for_a_slope_has_none():
    engine = Harness(num_blocks=200).engine
    (row,) = measure_latency(engine, COSTS, LIMITS, (1,), (5, 2), vocab_size=1000)
    assert row.slope_ms is None
    assert row.step_ms > 0


def test_a_batch_of_which_no_step_decodes_all_has_no_step(capsys):
    """Five prompts of 60 tokens take five iterations, and the first sequence ends in the third."""
    engine = Harness(num_blocks=200, max_num_batched_tokens=64).engine
    rows = measure_latency(engine, COSTS, LIMITS, (5,), (60, 3), vocab_size=1000)
    assert rows[0].step_ms is rows[0].tokens_per_s is rows[0].slope_ms is None
    assert latency_json(rows)[0]["share_of_limit"] is None
    print_latency(rows)
    _, row, note = capsys.readouterr().out.splitlines()
    assert row.split()[1] == "-"
    assert "--output-len" in note


def test_slope_of_a_line_in_spite_of_outliers():
    steps = [1.0 + 0.25 * step for step in range(160)]
    assert slope_of(steps) == pytest.approx(0.25)
    steps[3] = steps[77] = 1000.0
    assert slope_of(steps) == pytest.approx(0.25, abs=0.01)
    assert slope_of(steps[:31]) is None
