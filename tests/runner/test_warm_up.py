from __future__ import annotations

from service.runner.warm_up import warm_up
from tests.models.checkpoints import llama
from tests.runner.loading import load


def test_what_it_computed_is_forgotten(tmp_path):
    runner = load(llama(tmp_path)).runner
    warm_up(runner)
    warm_up(runner)
    assert len(runner._sampling_rows) == 0
