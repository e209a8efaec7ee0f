from __future__ import annotations

import json
import logging
import sys
from datetime import datetime

import pytest

from service.core.log_fields import FIELDS
from service.process.log_format import LogFormat, make_formatter

FACTS = {"route": "/v1/completions", "status": 200}


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("headrace", logging.WARNING, __file__, 1, 'a "word" and %d', (5,), None)
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize(
    ("form", "is_terminal", "request_is_json", "others_are_json"),
    [
        ("auto", True, False, False),
        ("auto", False, True, False),
        ("text", False, False, False),
        ("json", True, True, True),
    ],
)
def test_who_reads_which_form(form: LogFormat, is_terminal: bool, request_is_json: bool, others_are_json: bool):
    formatter = make_formatter(form, is_terminal=is_terminal)
    for made, is_json in ((record(**{FIELDS: FACTS}), request_is_json), (record(), others_are_json)):
        line = formatter.format(made)
        assert line.startswith("{") == is_json
        if not is_json:
            assert line.endswith('WARNING headrace: a "word" and 5')


def test_an_object_has_a_time_and_the_records_facts_or_its_message():
    formatter = make_formatter("json", is_terminal=False)
    line = json.loads(formatter.format(record(**{FIELDS: FACTS})))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"level": "warning", "logger": "headrace", **FACTS}
    assert json.loads(formatter.format(record()))["message"] == 'a "word" and 5'


def test_an_object_is_one_line_whatever_is_in_it():
    formatter = make_formatter("json", is_terminal=False)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        line = formatter.format(record(exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError: two\nlines" in json.loads(line)["exception"]
    assert "\n" not in formatter.format(record(**{FIELDS: {"odd": object(), "text": "a\nb"}}))
