from __future__ import annotations

import pytest

from service.bench.small_kernels import Result, all_cases, measure, print_table


def test_every_case_has_a_name_and_moves_bytes():
    cases = list(all_cases())
    assert len({(case.name, case.rows) for case in cases}) == len(cases)
    assert all(case.num_bytes > 0 and case.rows > 0 for case in cases)


def test_one_line_an_operation_and_one_column_a_number_of_rows(capsys):
    print_table([Result("a", 1, 2.0, 0.5), Result("a", 64, 3.0, 0.25), Result("b", 64, 4.0, 1.0)])
    head, first, second = (line.split("  ") for line in capsys.readouterr().out.splitlines())
    assert [cell.strip() for cell in head if cell] == ["us (% of 4.25 TB/s)", "1", "64"]
    assert [cell.strip() for cell in first if cell] == ["a", "2.0 (50 %)", "3.0 (25 %)"]
    assert [cell.strip() for cell in second if cell] == ["b", "4.0 (100 %)"]


@pytest.mark.gpu
def test_measures():
    result = measure(next(case for case in all_cases() if case.name == "silu_and_mul"))
    assert 0 < result.microseconds < 1e4
    assert result.share > 0
