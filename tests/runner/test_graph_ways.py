"""Which way takes which plan, in the order that the runner asks them. What they draw: test_cuda_graphs.py."""

from __future__ import annotations

import pytest

from service.core.iteration_plan import IterationPlan, Past, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.graph_sizes import GraphSize
from tests.models.checkpoints import llama
from tests.runner.loading import load
from tests.runner.plans import as_decodes
from tests.runner.uncaptured import without_capture
from tests.structured.masks import FixedMasks

PARAMS = SamplingParams(max_tokens=99)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    loaded = load(llama(tmp_path_factory.mktemp("model")), max_num_seqs=8)
    with pytest.MonkeyPatch.context() as patch:
        without_capture(patch)
        loaded.runner.capture_graphs([GraphSize(8, 8), GraphSize(4, 4), GraphSize(64, 8)])
        yield loaded.runner


@pytest.fixture
def asked(runner, monkeypatch):
    """launch(plan) -> the name of the way that computed it, and the drawn ids."""
    taken = []
    for way in runner._ways:

        def noting(step, way=way, compute=way.compute):
            taken.append(type(way).__name__)
            return compute(step)

        monkeypatch.setattr(way, "compute", noting)

    def launch(plan):
        ids = runner.launch(plan).wait().token_ids
        return taken.pop(0), ids

    yield launch
    runner.launch(IterationPlan((), released=tuple(range(1, 17)))).wait()


def item(row, num_tokens=1, computed=0, sampling=PARAMS, num_samples=1):
    draws = tuple(Sample(row, i) for i in range(num_samples))
    return ScheduledSequence(row, row, (5,) * num_tokens, computed, 0, (row,), sampling, draws, Past((), 1))


def plan(*scheduled, decodes=(), version=1, **how):
    if not decodes:
        return IterationPlan(scheduled, **how)
    return IterationPlan(scheduled, decodes=as_decodes(decodes, version), **how)


def steady(*rows, computed):
    return [item(row, 1, computed)._replace(block_ids=(), table_start=1) for row in rows]


def test_plain_decodes_are_drawn_by_a_graph_and_then_again(asked):
    assert asked(plan(item(1), item(2)))[0] == "DecodeGraph"
    assert asked(plan(decodes=steady(1, 2, computed=1)))[0] == "DecodeGraph"
    assert asked(plan(decodes=steady(1, 2, computed=2)))[0] == "SameDecodesAgain"
    assert asked(plan(decodes=steady(1, 2, computed=3)))[0] == "SameDecodesAgain"
    assert asked(plan(decodes=steady(2, 1, computed=4), version=2))[0] == "DecodeGraph"


def test_again_is_not_what_stands_beside_others_or_further_on(asked):
    asked(plan(item(1), item(2)))
    asked(plan(decodes=steady(1, 2, computed=1)))
    assert asked(plan(item(3), decodes=steady(1, 2, computed=2)))[0] == "DecodeGraph"
    assert asked(plan(decodes=steady(1, 2, computed=3)))[0] == "DecodeGraph", "what is held has the third"
    assert asked(plan(item(3, 5), decodes=steady(1, 2, computed=4)))[0] == "MixedGraph"
    assert asked(plan(decodes=steady(1, 2, computed=5)))[0] == "DecodeGraph", "what is held is two tokens behind"
    assert asked(plan(item(4, 5)))[0] == "MixedGraph"
    assert asked(plan(decodes=steady(1, 2, computed=6)))[0] == "SameDecodesAgain", "nothing has come between these"


def test_masked_decodes_are_drawn_from_a_graphs_logits_and_not_again(asked):
    asked(plan(item(1), item(2)))
    asked(plan(decodes=steady(1, 2, computed=1)))
    masks = FixedMasks([-1, 0], [[7]], 301)
    way, ids = asked(plan(decodes=steady(1, 2, computed=2), masks=masks))
    assert (way, ids[1]) == ("DecodeGraphLogits", 7)
    assert asked(plan(decodes=steady(1, 2, computed=3)))[0] == "DecodeGraph"


def test_who_asks_for_more_is_drawn_kernel_by_kernel(asked):
    asking = SamplingParams(max_tokens=9, repetition_penalty=1.3)
    assert asked(plan(item(1), item(2, sampling=asking)))[0] == "DecodeGraphLogits"
    assert asked(plan(item(1, 5), item(2, sampling=asking)))[0] == "EagerStep"
    assert asked(plan(item(1, 5), item(2)))[0] == "MixedGraph"
    assert asked(plan(item(1, num_samples=2), item(2)))[0] == "MixedGraph"
    assert asked(plan(item(1, 200)._replace(block_ids=tuple(range(13)))))[0] == "EagerStep", "no size has room"


def test_rows_beyond_those_that_were_planned_leave_the_graphs(tmp_path):
    loaded = load(llama(tmp_path), max_num_seqs=2)
    with pytest.MonkeyPatch.context() as patch:
        without_capture(patch)
        loaded.runner.capture_graphs([GraphSize(4, 4)])
        assert loaded.runner.launch(plan(item(1))).wait().is_replayed
        assert loaded.runner.launch(plan(decodes=steady(1, computed=1))).wait().is_replayed
        assert not loaded.runner.launch(plan(item(40))).wait().is_replayed
        assert not loaded.runner.launch(plan(decodes=steady(1, computed=2))).wait().is_replayed
