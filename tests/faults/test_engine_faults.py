"""The anomaly loop over the engine, on the toy model: deciding, bookkeeping, applying, reporting."""

from __future__ import annotations

import pytest

from tests.faults.anomaly_loop import check_every_call, play_undisturbed
from tests.faults.engine_scene import CANARY, FIRST, EngineScene, quiet
from tests.faults.engine_sites import ENGINE_SITES
from tests.faults.fault_sites import FaultSite


@pytest.mark.parametrize("overlap", [False, True])
def test_the_scene_has_what_it_is_for(overlap: bool):
    scene = EngineScene(overlap)
    ending, _ = play_undisturbed(scene, ENGINE_SITES[0])
    sink = scene.harness.sink
    assert ending.tokens[CANARY, 0] == ending.tokens[FIRST, 0]
    assert {kept.recovery for stats, _, _ in sink.requests for kept in stats.preemptions} == {"swap", "recompute"}
    assert sum(stats.num_cached_tokens for stats, _, _ in sink.requests) > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("site", ENGINE_SITES, ids=lambda site: site.name)
def test_every_call_may_fail(site: FaultSite, overlap: bool, monkeypatch: pytest.MonkeyPatch):
    quiet(monkeypatch)
    num_calls = check_every_call(site, lambda: EngineScene(overlap))
    assert num_calls or not overlap, f"the scene does not reach {site.name}"
