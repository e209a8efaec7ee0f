from __future__ import annotations

import pytest

from kernels.cpu_loops import cpu_loops
from service.core.sampling_params import SamplingParams
from service.layers.packed_weight import FEW_ROWS, WeightForm
from service.runner.choices import weight_forms
from service.runner.recorded_decodes import RecordedDecodesAgain
from service.runner.recorded_steps import RecordedSteps
from tests.models.checkpoints import llama, mistral, opt, qwen3, random_prompts
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy

PROMPTS = sorted(random_prompts(20 + FEW_ROWS), key=len)


@pytest.fixture(autouse=True)
def second_form(monkeypatch):
    """Loops multiply, whichever way is faster here."""
    if cpu_loops() is None:
        pytest.skip("this machine runs no compiled loops")
    monkeypatch.setattr(weight_forms, "_fastest", lambda both, timer: WeightForm.BOTH)


def outputs(folder, max_seqs, enforce_eager, max_num_seqs=64):
    loaded = load(folder, dtype="bfloat16", enforce_eager=enforce_eager, max_num_seqs=max_num_seqs)
    player = PlanPlayer(loaded.runner, loaded.num_blocks, 16)
    return player.generate(PROMPTS[: 2 * max_seqs], greedy(8), chunk=64, max_seqs=max_seqs), next(
        (way for way in loaded.runner.replays.ways if isinstance(way, RecordedSteps)), None
    )


@pytest.mark.each_once
@pytest.mark.parametrize("max_seqs", [1, 5, 26])
@pytest.mark.parametrize("save", [llama, mistral, qwen3])
def test_replayed_steps_draw_what_plain_ones_do(save, max_seqs, tmp_path):
    folder = save(tmp_path, head_dim=32)
    want, recorded = outputs(folder, max_seqs, enforce_eager=True)
    assert recorded is None
    got, recorded = outputs(folder, max_seqs, enforce_eager=False)
    assert got == want
    assert recorded._recorded and not recorded._refused


def sampled(player, max_tokens):
    params = SamplingParams(max_tokens=max_tokens, temperature=0.9, top_p=0.8, seed=3)
    return player.generate(PROMPTS[:6], params, chunk=64, max_seqs=3)


def test_the_same_decodes_are_advanced_where_they_are_and_draw_what_plain_ones_do(tmp_path, monkeypatch):
    folder, again = llama(tmp_path, head_dim=32), []
    compute = RecordedDecodesAgain.compute
    monkeypatch.setattr(RecordedDecodesAgain, "compute", lambda self, step: again.append(step) or compute(self, step))
    want, got = (
        sampled(PlanPlayer(loaded.runner, loaded.num_blocks, 16), 40)
        for loaded in (load(folder, dtype="bfloat16", enforce_eager=is_plain) for is_plain in (True, False))
    )
    assert got == want
    assert len(again) > 40, "most of them, over several blocks"


def test_a_block_table_that_grows_is_read_where_it_is(tmp_path):
    folder = llama(tmp_path, head_dim=32)
    want, _ = outputs(folder, 9, enforce_eager=True)
    got, recorded = outputs(folder, 9, enforce_eager=False, max_num_seqs=3)
    assert got == want and recorded._recorded


def test_a_model_of_other_operations_is_computed_plainly(tmp_path):
    folder = opt(tmp_path)
    want, _ = outputs(folder, 3, enforce_eager=True)
    got, recorded = outputs(folder, 3, enforce_eager=False)
    assert got == want
    assert recorded._refused
