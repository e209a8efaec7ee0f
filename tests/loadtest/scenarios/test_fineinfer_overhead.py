import time
from collections.abc import Callable

from loadtest.scenarios.fineinfer_overhead import Spread, overhead, spreads


def noted(calls: list[tuple[str, int]], name: str, seconds: float = 0.0) -> Callable[[int], None]:
    def trial(number: int) -> None:
        calls.append((name, number))
        time.sleep(seconds)

    return trial


def test_components_take_turns_and_warm_ups_do_not_count() -> None:
    calls: list[tuple[str, int]] = []
    measured = spreads({"a": noted(calls, "a"), "b": noted(calls, "b", 0.01)}, most_s=60.0, trials=4)
    assert calls == [(name, number) for number in range(5) for name in ("a", "b")], "each with a number of its own"
    assert [one.trials for one in measured.values()] == [4, 4]
    assert all(one.low <= one.median <= one.high for one in measured.values())
    assert measured["b"].low >= 0.01


def test_what_takes_too_long_has_three_trials() -> None:
    assert spreads({"a": noted([], "a", 0.005)}, trials=50, most_s=0.001)["a"].trials == 3


def test_where_the_middle_halves_overlap_there_is_no_overhead_to_tell() -> None:
    forward = Spread(8, 0.9, 1.0, 1.2)
    assert overhead(forward, Spread(8, 1.3, 2.0, 2.1)) == 50
    assert overhead(forward, Spread(8, 0.8, 0.9, 1.0)) == "scatter", "below zero it would be"
    assert overhead(forward, Spread(8, 1.1, 1.5, 1.6)) == "scatter"
