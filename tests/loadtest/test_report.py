import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from loadtest.metrics import RunLabels, summarize, without_long_arrays
from loadtest.report import html_report
from loadtest.runner import LoadOutcome
from loadtest.stream_record import StreamRecord


def _result(rate: float, gap: float) -> dict[str, Any]:
    records = [
        StreamRecord(
            i,
            i / rate,
            i / rate,
            i / rate + 3 * gap,
            [i / rate + gap * k for k in (1, 2, 3)],
            [1] * 3,
            input_tokens=5,
            output_tokens=3,
        )
        for i in range(20)
    ]
    records.append(StreamRecord(20, 1.0, 1.0, 1.5, error="timeout: <late>"))
    duration = max(record.end_s for record in records)
    return summarize(LoadOutcome(records, 0.0, duration), RunLabels("openai", "x", "m", request_rate=rate))


def test_report_is_self_contained_and_shows_every_result() -> None:
    page = html_report([_result(5, 0.01), _result(9, 0.02)], ["one <1>", "two"])
    assert "one &lt;1&gt;" in page
    assert "<1>" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") == 9
    assert "&times;2.00" in page
    assert "no data" not in page


def test_plots_are_sound_xml() -> None:
    page = html_report([_result(5, 0.01)], ["one"])
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(plots) == 8
    for plot in plots:
        ElementTree.fromstring(plot)


def test_results_without_arrays_still_have_a_table() -> None:
    assert "no data" in html_report([without_long_arrays(_result(5, 0.01))], ["short"])


def test_names_must_match() -> None:
    with pytest.raises(ValueError, match="names"):
        html_report([_result(5, 0.01)], [])
