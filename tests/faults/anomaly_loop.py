"""The N-th call of a (fault) site fails, as in SQLite's tests: the first, the last, one between; nearly all with
TEST_EXAMPLES=10."""

from __future__ import annotations

from collections.abc import Callable

from tests.examples import FACTOR, spread
from tests.faults.engine_scene import Ending, EngineScene, check_undisturbed
from tests.faults.fault_sites import FaultSite, Moment, Reach, armed

CALLS_OF_EACH = 3


def chosen_calls(site: FaultSite, num_calls: int, moment: Moment) -> list[int]:
    """Which of a site's calls fail, one per run, counted from 1.

    For "after", the calls between the first and the last are others than for "before", so that together they cover
    more calls; and of a site that has both, the first call fails before its work, and the last one after it.
    """
    chosen = spread(range(1, num_calls + 1), CALLS_OF_EACH)
    if moment == "after" and 1 < len(chosen) < num_calls:
        chosen = [chosen[0], *[max(2, call - 1) for call in chosen[1:-1]], chosen[-1]]
    if len(site.moments) > 1 and FACTOR <= 1 and len(chosen) == CALLS_OF_EACH:
        return chosen[1:] if moment == "after" else chosen[:-1]
    return chosen


def check_every_call(site: FaultSite, make_scene: Callable[[], EngineScene]) -> int:
    """Play the scene with each fault of the site and check what must hold. Returns the site's number of calls."""
    golden, num_calls = play_undisturbed(make_scene(), site)
    for moment in site.moments:
        for nth in chosen_calls(site, num_calls, moment):
            try:
                _play_with_fault(site, nth, moment, make_scene(), golden)
            except Exception as fault:
                raise AssertionError(f"call {nth} of {site.name}, {moment} its work") from fault
    return num_calls


def play_undisturbed(scene: EngineScene, site: FaultSite) -> tuple[Ending, int]:
    """The scene's ending without a fault, and the site's number of calls."""
    with armed(site, 0) as count:
        ending = scene.play()
    assert not ending.deaths
    assert not ending.failed()
    scene.check_books()
    return ending, count.num_calls


def _play_with_fault(site: FaultSite, nth: int, moment: Moment, scene: EngineScene, golden: Ending) -> None:
    with armed(site, nth, moment) as count:
        ending = scene.play()
    failed = ending.failed()
    assert count.num_calls >= nth, "until then all goes as in the run in which they were counted"
    check_undisturbed(ending, golden, failed)
    if site.reach is Reach.PROCESS and ending.deaths:
        assert len(ending.deaths) == 1
        assert isinstance(ending.deaths[0], site.fault), "no other fault follows"
        return
    assert not ending.deaths
    assert set(ending.finals) == set(golden.finals), "each request ends"
    if site.reach is Reach.NOBODY:
        assert not failed
    elif site.reach is Reach.REQUEST:
        assert len(failed) <= 1
    scene.check_books()
