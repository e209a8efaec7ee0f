from __future__ import annotations

from loadtest.bench.kernel_cases import all_cases


def test_every_case_has_a_name_and_moves_bytes():
    cases = list(all_cases())
    assert len({(case.name, case.rows) for case in cases}) == len(cases)
    assert all(case.num_bytes > 0 and case.rows > 0 for case in cases)
