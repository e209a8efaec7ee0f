from collections.abc import Callable

import pytest

from loadtest.process_tree import Holdings
from loadtest.soak.verdict import Bounds, Rest, invariants_of_rests, rest_table


def rests(
    memory: Callable[[int], float], num_rests: int = 24, files: Callable[[int], int] = lambda _: 20
) -> list[Rest]:
    """A rest every 12 s."""
    return [Rest(12.0 * i, 0.1, Holdings(memory(i), files(i), 10, 1)) for i in range(num_rests)]


def broken(found: list[Rest], bounds: Bounds | None = None) -> list[str]:
    invariants = invariants_of_rests(found, bounds or Bounds())
    return [each.words.split(",")[0] for each in invariants if not each.holds]


def test_what_warms_up_and_then_stays_is_no_leak() -> None:
    assert broken(rests(lambda i: 500 + 30 * min(i, 5) + (-1) ** i)) == []


def test_a_leak_of_two_mb_a_minute_is_seen_through_noise() -> None:
    leak = rests(lambda i: 500 + 0.4 * i + (-1) ** i)
    assert broken(leak) == ["memory"]
    growth, slope = (each for each in invariants_of_rests(leak, Bounds()) if each.words.startswith("memory"))
    assert growth.holds
    assert slope.found is not None
    assert 60 < slope.found < 120


def test_one_late_growth_is_seen() -> None:
    assert "memory" in broken(rests(lambda i: 500 + 101 * (i == 23)), Bounds(max_slope_mb_per_hour=float("inf")))


def test_files_that_stay_open_are_seen() -> None:
    assert broken(rests(lambda i: 500, files=lambda i: 20 + i)) == ["open files at rest"]


def test_a_server_that_does_not_come_to_rest_is_seen() -> None:
    late = rests(lambda i: 500)
    late[3] = late[3]._replace(waited_s=2.5)
    assert broken(late) == ["to rest"]


@pytest.mark.parametrize("num_rests", [0, 1])
def test_where_nothing_can_be_known_nothing_holds(num_rests: int) -> None:
    assert "memory" in broken(rests(lambda i: 500, num_rests=num_rests))


def test_with_few_rests_the_slope_is_unknown() -> None:
    assert broken(rests(lambda i: 500, num_rests=3)) == ["memory"]
    assert broken(rests(lambda i: 500, num_rests=3), Bounds(max_slope_mb_per_hour=float("inf"))) == []


def test_the_table_stays_short_and_shows_the_last() -> None:
    lines = rest_table(rests(lambda i: 500 + i, num_rests=1000)).splitlines()
    assert len(lines) <= 14
    assert lines[-1].split()[1] == "1499.0"
