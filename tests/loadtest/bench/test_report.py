from __future__ import annotations

import json

from loadtest.bench.report import percent, print_json, print_table


def test_columns_are_aligned(capsys):
    print_table(["name", "us"], [["a long one", "1.0"], ["b", "123.4"]])
    assert capsys.readouterr().out.splitlines() == ["name           us", "a long one    1.0", "b           123.4"]


def test_json_is_one_line_with_five_digits(capsys):
    print_json({"a": 1.23456789, "b": [{"c": 2}], "d": None, "e": "x", "f": (0.1 + 0.2,)})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {"a": 1.2346, "b": [{"c": 2}], "d": None, "e": "x", "f": [0.3]}


def test_percent_of_the_limit():
    assert percent(3.5, 4.0) == "88 %"
