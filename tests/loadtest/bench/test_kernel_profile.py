from __future__ import annotations

from loadtest.bench.kernel_profile import KernelTime, kernel_times, print_kernel_times


def event(name, start_us, end_us, grid=(1, 1, 1)):
    return {"cat": "kernel", "name": name, "ts": start_us, "dur": end_us - start_us, "args": {"grid": list(grid)}}


def test_what_waits_for_the_kernel_before_it_gets_the_rest_alone():
    events = [
        event("product", 0.0, 10.0),
        {"cat": "cpu_op", "name": "launch", "ts": 0.0, "dur": 50.0},
        event("attention", 4.0, 12.0),  # it has waited until 10
        event("product", 13.5, 20.0),
        event("product", 15.0, 21.0, (2, 1, 1)),
    ]
    assert kernel_times(events) == [
        KernelTime("product 1x1x1", 2, 16.5, 1.5),
        KernelTime("attention 1x1x1", 1, 2.0, 0.0),
        KernelTime("product 2x1x1", 1, 1.0, 0.0),
    ]


def test_a_table_of_a_step(capsys):
    print_kernel_times([KernelTime("product 4x1x1", 6, 60.0, 3.0), KernelTime("norm 1x1x1", 3, 6.0, 0.0)], 3, 1)
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("22 us of kernels a step, 1 between them")
    assert [row.split() for row in rows] == [["2.0", "10.00", "20.0", "product", "4x1x1"]]
