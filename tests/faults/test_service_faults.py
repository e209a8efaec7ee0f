"""The anomaly loop over the service: every call is answered within a time limit, whatever fails in it or beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.process.log_writer import LogWriter
from tests.faults.anomaly_loop import chosen_calls
from tests.faults.fault_sites import FaultSite, Moment, Reach, armed
from tests.faults.service_scene import CANARY, LONG_CHAT, LONG_COMPLETION, Answer, ServiceScene, logging_to_nowhere
from tests.faults.service_sites import BEFORE_THE_ANSWER, SERVICE_SITES, calls_of


class Servers:
    """One server for all runs; a new one after one has died."""

    def __init__(self, log: LogWriter) -> None:
        self.log = log
        self._scene = ServiceScene()
        self.golden = self._scene.play()

    def scene(self) -> ServiceScene:
        if self._scene.server.deaths:
            self._scene.close()
            self._scene = ServiceScene()
        return self._scene

    def close(self) -> None:
        self._scene.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with logging_to_nowhere() as log:
        made = Servers(log)
        yield made
        made.close()


def count_calls(site: FaultSite, servers: Servers) -> int:
    """The approximate number of calls in a run without a fault; some depend on timing."""
    scene = servers.scene()
    calls = calls_of(site)
    with armed(site, 0) as count:
        answers = scene.play(calls)
    assert answers == {call.name: servers.golden[call.name] for call in calls}
    scene.server.check_idle()
    assert count.num_calls, f"the scene does not reach {site.name}"
    return count.num_calls


def play_with_fault(site: FaultSite, nth: int, moment: Moment, servers: Servers) -> bool:
    """Checks what must hold. Returns False if the site was called fewer than `nth` times."""
    scene, golden = servers.scene(), servers.golden
    with armed(site, nth, moment) as count:
        answers = scene.play(calls_of(site))
    is_hit = count.num_calls >= nth
    if is_hit and site.reach is Reach.PROCESS:
        scene.server.wait_for_death(0.5)
    hurt = {name: answer for name, answer in answers.items() if answer != golden[name]}
    if scene.server.deaths:
        assert is_hit
        assert site.reach is Reach.PROCESS
        assert len(scene.server.deaths) == 1
        assert isinstance(scene.server.deaths[0], site.fault), "no other fault follows"
        assert not scene.is_healthy()
        check_refused(hurt)
        return True
    assert is_hit or not hurt
    assert len(hurt) <= (0 if site.reach is Reach.NOBODY else 1), hurt
    check_refused(hurt, may_break=site.reach is Reach.CONNECTION)
    scene.server.check_idle()
    assert servers.log.is_alive, "the log goes on"
    assert scene.play([CANARY]) == {CANARY.name: golden[CANARY.name]}
    assert scene.is_healthy()
    return is_hit


def check_refused(hurt: dict[str, Answer], *, may_break: bool = False) -> None:
    """Each has an answer that reports the failure; none gets half an answer."""
    kinds = {answer.kind for answer in hurt.values()}
    assert kinds <= ({"refused", "broken"} if may_break else {"refused"}), hurt


@pytest.mark.parametrize("site", SERVICE_SITES, ids=lambda site: site.name)
def test_every_call_may_fail(site: FaultSite, servers: Servers):
    num_calls = count_calls(site, servers)
    for moment in site.moments:
        for nth in chosen_calls(site, num_calls, moment):
            try:
                is_hit = play_with_fault(site, nth, moment, servers)
            except Exception as fault:
                raise AssertionError(f"call {nth} of {site.name}, {moment} its work") from fault
            assert is_hit or nth > 1, f"the scene does not reach {site.name}"


@pytest.mark.parametrize("site", BEFORE_THE_ANSWER, ids=lambda site: site.name)
def test_a_call_that_fails_before_its_answer_begins_is_aborted(site: FaultSite, servers: Servers):
    """Its engine request would take far longer than the time that the server has to become idle."""
    scene = servers.scene()
    executor = scene.server.executor
    executor.delay_s = 0.05
    try:
        with armed(site, 1):
            call = LONG_CHAT if site.name in {"chat_answer", "answer_stream"} else LONG_COMPLETION
            assert scene.play([call])[call.name].kind == "refused"
        scene.server.check_idle()
    finally:
        executor.delay_s = 0.0
