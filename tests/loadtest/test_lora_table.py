from __future__ import annotations

import pytest

from loadtest.lora_table import RATE, TPOT, TTFT, LoraRow, cells, evicting_rows, resident_rows
from loadtest.prompts import BodyOptions, request_body
from loadtest.serving_table import measure
from loadtest.stub_server import VOCAB_SIZE
from loadtest.trace import TraceRequest


def test_requests_take_turns_at_the_models() -> None:
    options = BodyOptions("a", more_models=("b", "c"))
    bodies = [request_body(TraceRequest(i, prompt_len=4), options) for i in range(6)]
    assert [body.split(b'"model":"')[1][:1] for body in bodies] == [b"a", b"b", b"c"] * 2


@pytest.mark.parametrize(
    ("row", "ours", "base", "verdict"),
    [
        (LoraRow("decode-1", 1, 1, TPOT, 1.08), 10.7, 10.0, "met"),
        (LoraRow("decode-1", 1, 1, TPOT, 1.08), 10.9, 10.0, "missed"),
        (LoraRow("orca", 9, 8, RATE, 0.93), 94.0, 100.0, "met"),
        (LoraRow("orca", 9, 8, RATE, 0.93), 92.0, 100.0, "missed"),
        (LoraRow("orca", 9, 8, TTFT, 5.0, beyond=True), 14.0, 10.0, "met"),
        (LoraRow("orca", 9, 8, TTFT, 5.0, beyond=True), 16.0, 10.0, "missed"),
    ],
)
def test_a_goal_is_of_the_bases_figure_or_beyond_it(row: LoraRow, ours: float, base: float, verdict: str) -> None:
    assert cells(row, ours, base)[-1] == verdict


def test_every_row_has_prompts_of_its_own_and_its_base_is_the_same_work() -> None:
    rows = [*resident_rows(256), *evicting_rows(64)]
    names = [row.row(label).name for row in rows for label in ("without", "resident")]
    assert len(set(names)) == len(names)
    assert {(row.for_base().workload, row.for_base().num_requests) for row in rows} == {
        (row.workload, row.num_requests) for row in rows
    }
    assert all(row.num_adapters <= 8 for row in resident_rows(8))


def test_a_row_is_measured_with_its_models(stub_url: str) -> None:
    row = LoraRow("fixed-8x5", 4, 2, TPOT, 1.0)
    assert measure(stub_url, row.row("here"), VOCAB_SIZE, 1, models=["stub", "stub"])["completed"] == 4
