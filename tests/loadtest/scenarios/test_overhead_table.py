from loadtest.scenarios.overhead_table import overhead


def test_what_is_less_than_the_runs_differ_by_is_scatter() -> None:
    assert overhead(0.75, 1.0, 1.1) == 25
    assert overhead(0.95, 1.0, 1.1) == "scatter"
    assert overhead(1.05, 1.0, 1.0) == "scatter", "below zero it would be"
