import dataclasses

import pytest

from loadtest.scenarios.stage import FULL, SMALL, Stage
from service.core.iteration import IterationPlan


def test_the_same_trace_at_any_rate() -> None:
    stage = Stage(SMALL)
    at_once, slowly = stage.trace("orca", 5), stage.trace("orca", 5, 2.0)
    assert [r.prompt_token_ids for r in at_once] == [r.prompt_token_ids for r in slowly]
    assert all(request.arrival_s == 0 for request in at_once)
    assert [r.arrival_s for r in slowly] == sorted(r.arrival_s for r in slowly)
    assert slowly[-1].arrival_s > 0


def test_a_cut_trace() -> None:
    lengths = [(len(r.prompt_token_ids), r.output_len) for r in Stage(SMALL).cut_trace("sharegpt", 50, 100, 64)]
    assert max(prompt for prompt, _ in lengths) == 100
    assert max(output for _, output in lengths) == 64


def test_policies_have_room_for_padding_beside_their_memory() -> None:
    pool = Stage(SMALL).pool(1024, block_size=16)
    assert (pool.num_blocks, pool.num_spare_blocks) == (64, 128)


def test_trials_take_as_long_as_the_form_says_or_as_is_asked_for() -> None:
    assert Stage(FULL).trials_s == FULL.trials_s
    assert Stage(FULL, trials_s=340.0).trials_s == 340.0


@pytest.mark.parametrize("form", [SMALL, FULL])
def test_captions_say_where(form) -> None:
    text = Stage(form).describe()
    assert form.name in text
    assert "host cores" in text


def test_the_model_is_loaded_once_for_what_it_holds() -> None:
    stage = Stage(dataclasses.replace(SMALL, max_model_len=64, max_num_seqs=40))
    first = stage.model_pool(1024, 16, 4)
    again = stage.model_pool(512, 16)
    assert again.executor is first.executor
    assert (again.num_blocks, again.num_host_blocks) == (32, 0)
    assert stage.model_pool(2048, 16, 8).executor is first.executor
    assert stage.model_pool(512, 8).executor is not first.executor
    first.executor.launch(IterationPlan(())).wait()
