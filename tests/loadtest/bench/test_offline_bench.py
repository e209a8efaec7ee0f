"""test_cli.py runs it as a command; here, what it reports to whoever reads its last line."""

from __future__ import annotations

import json

import pytest

from loadtest.bench.offline_bench import bench
from loadtest.bench.options import LatencyOptions, ThroughputOptions
from service.errors import ConfigError
from service.settings.settings import Settings
from tests.composition.conftest import SMALL


def test_the_last_line_tells_model_settings_and_rows(capsys: pytest.CaptureFixture[str]):
    assert bench(Settings(**SMALL), LatencyOptions((1, 2), 8, 4)) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["model"], result["dtype"], result["device"]) == ("headrace-quickstart", "float32", "cpu")
    assert "max_num_seqs=4" in result["settings"]
    assert [row["batch_size"] for row in result["rows"]] == [1, 2]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (LatencyOptions((8,), 8, 4), "batch-sizes: 8 is more than max-num-seqs"),
        (ThroughputOptions("nope", 2), "workload: no workload 'nope'"),
        (ThroughputOptions("multi-turn", 2), "needs a server"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(options: LatencyOptions | ThroughputOptions, named: str):
    with pytest.raises(ConfigError, match=named):
        bench(Settings(**SMALL), options)
