from __future__ import annotations

import pytest

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.model_limits import ModelCosts
from loadtest.bench.throughput import ThroughputRow, measure_throughput, print_throughput, throughput_json
from tests.engine.harness import Harness

COSTS = ModelCosts(1000, 2000, 200, 10, 50, (None, None))
LIMITS = DeviceLimits("toy", 1e9, 1e9)


def test_counts_all_requests_and_tokens():
    engine = Harness(num_blocks=400, max_num_seqs=4, max_num_batched_tokens=32).engine
    lengths = [(10, 3), (20, 1), (5, 8), (7, 2), (9, 9)]
    row = measure_throughput(engine, COSTS, LIMITS, "own", lengths, 4, vocab_size=1000)
    assert (row.num_requests, row.prompt_tokens, row.output_tokens) == (5, 51, 23)
    assert row.seconds > 0
    assert row.limit_s == COSTS.requests_s(LIMITS, lengths, 4)


def test_rates(capsys):
    row = ThroughputRow("own", 10, 300, 100, seconds=4.0, limit_s=1.0)
    assert (row.requests_per_s, row.tokens_per_s, row.output_tokens_per_s) == (2.5, 100.0, 25.0)
    assert throughput_json(row)["share_of_limit"] == pytest.approx(0.25)
    print_throughput(row)
    assert capsys.readouterr().out.splitlines()[1].split() == "own 10 4.00 1.00 25 % 2.50 100 25".split()
