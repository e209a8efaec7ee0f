"""The anomaly loop over the executor: a tiny model in fp32, greedy, whose tokens are the same in any batch.

Iterations overlap: when one fails, the next one has already been launched on what it leaves behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.core.iteration import IterationPlan
from service.runner.model_runner import ModelRunner
from tests.faults.anomaly_loop import check_every_call
from tests.faults.engine_scene import BLOCK_SIZE, MAX_NUM_SEQS, VOCAB_SIZE, EngineScene, quiet
from tests.faults.fault_sites import FaultSite
from tests.faults.runner_sites import RUNNER_SITES
from tests.models.checkpoints import llama
from tests.runner.loading import load


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelRunner]:
    folder = llama(tmp_path_factory.mktemp("llama"), vocab_size=VOCAB_SIZE, num_hidden_layers=1)
    some = 1 << 20
    yield load(folder, block_size=BLOCK_SIZE, max_num_seqs=MAX_NUM_SEQS, memory_bytes=some, swap_bytes=some).runner


class RunnerScene(EngineScene):
    def __init__(self, runner: ModelRunner) -> None:
        super().__init__(True, runner, temperature=0.0)
        self._runner = runner

    def check_books(self) -> None:
        super().check_books()
        assert len(self._runner._sampling_rows) == 0


def make_scene(runner: ModelRunner) -> RunnerScene:
    runner.launch(IterationPlan((), released=tuple(range(100)))).wait()  # another scene's ids are forgotten
    return RunnerScene(runner)


@pytest.mark.parametrize("site", RUNNER_SITES, ids=lambda site: site.name)
def test_every_call_may_fail(site: FaultSite, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch):
    quiet(monkeypatch)
    num_calls = check_every_call(site, lambda: make_scene(runner))
    assert num_calls, f"the scene does not reach {site.name}"
