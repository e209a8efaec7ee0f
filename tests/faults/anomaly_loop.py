"""The N-th call of a site fails, N = 1, 2, 3, …, until a run makes fewer calls and so passes untouched (SQLite's)."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.engine_scene import Ending, EngineScene, check_undisturbed
from tests.faults.fault_sites import FaultSite, Moment, Reach, armed


def check_every_call(site: FaultSite, make_scene: Callable[[], EngineScene]) -> int:
    """Play the scene with every fault of the site and check what must hold each time; how many calls failed."""
    golden, num_failed = play_undisturbed(make_scene()), 0
    for moment in site.moments:
        nth = 1
        while True:
            try:
                is_hit = _play_with_fault(site, nth, moment, make_scene(), golden)
            except Exception as fault:
                raise AssertionError(f"call {nth} of {site.name}, {moment} its work") from fault
            if not is_hit:
                break
            nth += 1
        num_failed += nth - 1
    return num_failed


def play_undisturbed(scene: EngineScene) -> Ending:
    """What comes of the scene when nothing fails."""
    ending = scene.play()
    assert not ending.deaths
    assert not ending.failed()
    scene.check_books()
    return ending


def _play_with_fault(site: FaultSite, nth: int, moment: Moment, scene: EngineScene, golden: Ending) -> bool:
    """False if the site is called fewer than `nth` times."""
    with armed(site, nth, moment) as count:
        ending = scene.play()
    failed, is_hit = ending.failed(), count.num_calls >= nth
    check_undisturbed(ending, golden, failed)
    if is_hit and site.reach is Reach.PROCESS and ending.deaths:
        assert len(ending.deaths) == 1
        assert isinstance(ending.deaths[0], site.fault), "no other fault follows"
        return True
    assert not ending.deaths
    assert set(ending.finals) == set(golden.finals), "each request ends"
    if site.reach is Reach.NOBODY:
        assert not failed
    elif site.reach is Reach.REQUEST:
        assert len(failed) <= 1
    assert is_hit or not failed
    scene.check_books()
    return is_hit
