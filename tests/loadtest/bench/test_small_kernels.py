from __future__ import annotations

import pytest

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.small_kernels import Result, measure_kernels, print_kernels


def test_one_line_an_operation_and_one_column_a_number_of_rows(capsys):
    print_kernels([Result("a", 1, 2.0, 0.5), Result("a", 64, 3.0, 0.25), Result("b", 64, 4.0, 1.0)])
    head, first, second = (line.split("  ") for line in capsys.readouterr().out.splitlines())
    assert [cell.strip() for cell in head if cell] == ["rows: us (of a copy's rate)", "1", "64"]
    assert [cell.strip() for cell in first if cell] == ["a", "2.0 (50 %)", "3.0 (25 %)"]
    assert [cell.strip() for cell in second if cell] == ["b", "4.0 (100 %)"]


@pytest.mark.gpu
def test_measures():
    results = measure_kernels(["silu_and_mul"], DeviceLimits("any", 4e12, 6e14))
    assert {result.name for result in results} == {"silu_and_mul"}
    assert all(0 < result.microseconds < 1e4 and result.share > 0 for result in results)
