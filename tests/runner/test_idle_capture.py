from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest
import torch

from service.runner.choices import kept_sizes
from service.runner.giving_up import GivenUpError
from service.runner.graph_sizes import GraphSize, PaddedStep, common_sizes, graph_sizes
from service.runner.idle_capture import IdleCapture, IdleWorks
from service.runner.load import load_executor
from tests.models.checkpoints import llama, random_prompts
from tests.runner.loading import load, source
from tests.runner.plan_player import PlanPlayer
from tests.runner.test_cuda_graphs import CACHE, random_params

SIZES = [GraphSize(64, 8), GraphSize(32, 0), GraphSize(8, 8)]


def test_a_piece_is_one_graph():
    captured = []
    work = IdleCapture(lambda sizes, must_give_up: captured.append(sizes), SIZES)
    assert [work.do_some() for _ in range(5)] == [True, True, False, False, False]
    assert captured == [[size] for size in SIZES]


def test_the_end_is_told(caplog):
    """loadtest/serving_table.py waits for it."""
    work = IdleCapture(lambda sizes, must_give_up: None, SIZES, kind="deterministic")
    with caplog.at_level(logging.INFO):
        while work.do_some():
            assert not caplog.records
    assert caplog.messages == ["all CUDA graphs of deterministic steps are captured"]


def test_a_kind_of_steps_that_there_may_never_be_waits_until_there_was_one():
    plain, asked, steps = [], [], []
    works = IdleWorks(
        (
            IdleCapture(lambda sizes, must_give_up: plain.extend(sizes), SIZES[:1]),
            IdleCapture(lambda sizes, must_give_up: asked.extend(sizes), SIZES, lambda: steps, once_seen=True),
        )
    )
    assert [works.do_some() for _ in range(3)] == [True, False, False]
    assert (plain, asked) == (SIZES[:1], []) and not works.is_missed()
    steps.append(PaddedStep(5, 5, 0, None))
    assert works.is_missed()
    assert works.do_some()
    assert asked == [SIZES[2]] and not works.is_missed()
    assert [works.do_some() for _ in range(3)] == [True, False, False]
    assert asked == [SIZES[2], *SIZES[:2]], "what nobody has missed yet, too: the next step may"


def test_it_is_urgent_while_most_steps_have_no_graph_that_is_to_come():
    steps = [PaddedStep(5, 5, 0, GraphSize(64, 64))] * 2
    work = IdleWorks((IdleCapture(lambda sizes, must_give_up: None, SIZES, lambda: steps),))
    assert work.is_missed() and not work.is_urgent()
    steps.extend([PaddedStep(5, 5, 0, None)] * 3)
    assert work.is_urgent()
    steps[:] = [PaddedStep(500, 500, 0, None)] * 3
    assert not work.is_missed() and not work.is_urgent()


def test_what_is_missed_comes_first():
    captured, steps = [], [PaddedStep(5, 5, 0, GraphSize(64, 64))]
    work = IdleCapture(lambda sizes, must_give_up: captured.extend(sizes), SIZES, lambda: steps)
    assert work.is_missed()
    assert work.do_some()
    assert captured == [SIZES[2]]
    assert not work.is_missed()
    assert [work.do_some() for _ in range(2)] == [True, False]
    assert captured == [SIZES[2], *SIZES[:2]]
    steps.append(PaddedStep(60, 3, 1, None))
    assert not work.is_missed(), "none is left"


@pytest.mark.parametrize("fault", [torch.OutOfMemoryError("no memory"), RuntimeError("capture failed")])
def test_a_fault_is_told_and_the_next_graph_is_captured(fault, caplog):
    captured = []

    def capture(sizes, must_give_up):
        if sizes == [SIZES[1]]:
            raise fault
        captured.extend(sizes)

    work = IdleCapture(capture, SIZES)
    with caplog.at_level(logging.WARNING):
        while work.do_some():
            pass
    assert captured == [SIZES[0], SIZES[2]]
    assert [record.getMessage() for record in caplog.records] == [
        "a CUDA graph of 32 tokens, 0 of them decodes, could not be captured; serving goes on without it"
    ]


def test_a_piece_that_is_given_up_is_the_next(caplog):
    captured, waits = [], iter([False, True, True, False, False])

    def capture(sizes, must_give_up):
        if must_give_up():
            raise GivenUpError
        captured.extend(sizes)

    work = IdleCapture(capture, SIZES)
    while work.do_some(lambda: next(waits)):
        pass
    assert captured == SIZES
    assert not caplog.records, "nothing has failed"


def captured_sizes(graphs):
    return sorted([*graphs.sizes.decodes, *graphs.sizes.mixed])


@pytest.mark.gpu
def test_requests_between_captures_get_the_same_tokens_and_in_the_end_all_are_captured(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_sizes, "outrun", lambda timed: set())  # timings of so small a model say nothing
    folder = llama(tmp_path)
    prompts, params = random_prompts(20), random_params(20, 3)
    eager = load(folder, device="cuda", enforce_eager=True)
    want = PlanPlayer(eager.runner, eager.num_blocks, 16).generate(prompts, params, chunk=40, max_seqs=9)
    loaded = load_executor(source(folder, device="cuda"), folder, CACHE, 64, 2048)
    graphs = loaded.runner.replays._graphs
    assert set(captured_sizes(graphs)) == common_sizes(64, 2048) < set(graph_sizes(64, 2048))
    player, has_more = PlanPlayer(loaded.runner, loaded.num_blocks, 16), True
    while has_more:
        assert player.generate(prompts, params, chunk=40, max_seqs=9) == want
        for _ in range(8):
            has_more = loaded.idle_work.do_some()
    assert captured_sizes(graphs) == sorted(graph_sizes(64, 2048))
    assert player.generate(prompts, params, chunk=40, max_seqs=9) == want


@pytest.mark.gpu
def test_a_capture_that_fails_half_way_leaves_the_device_usable(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(kept_sizes, "outrun", lambda timed: set())
    folder = llama(tmp_path)
    prompts, params = random_prompts(6), random_params(6, 0)
    loaded = load_executor(source(folder, device="cuda"), folder, CACHE, 64, 2048)
    player = PlanPlayer(loaded.runner, loaded.num_blocks, 16)
    want = player.generate(prompts, params)
    before = captured_sizes(loaded.runner.replays._graphs)
    compute_logits, calls = loaded.runner.replays._model.compute_logits, []

    def out_of_memory_in_the_capture(hidden):
        calls.append(1)
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("injected")
        return compute_logits(hidden)

    monkeypatch.setattr(loaded.runner.replays._model, "compute_logits", out_of_memory_in_the_capture)
    assert loaded.idle_work.do_some()
    assert len(calls) == 2
    assert "serving goes on without it" in caplog.text
    assert captured_sizes(loaded.runner.replays._graphs) == before
    monkeypatch.setattr(loaded.runner.replays._model, "compute_logits", compute_logits)
    assert loaded.idle_work.do_some()
    assert len(captured_sizes(loaded.runner.replays._graphs)) == len(before) + 1
    assert player.generate(prompts, params) == want


@pytest.mark.gpu
@pytest.mark.parametrize("num_layers", [0, 1, 2, 3])
def test_a_capture_that_is_given_up_at_any_layer_is_made_later(num_layers, tmp_path, monkeypatch):
    """Layers of the first computation, then of the capture; a graph that is there by then is complete."""
    monkeypatch.setattr(kept_sizes, "outrun", lambda timed: set())
    folder = llama(tmp_path)
    prompts, params = random_prompts(6), random_params(6, 0)
    loaded = load_executor(source(folder, device="cuda"), folder, CACHE, 64, 2048)
    player = PlanPlayer(loaded.runner, loaded.num_blocks, 16)
    want = player.generate(prompts, params)
    before = captured_sizes(loaded.runner.replays._graphs)
    asked = iter([False] * num_layers + [True])
    assert loaded.idle_work.do_some(lambda: next(asked, False))
    assert captured_sizes(loaded.runner.replays._graphs) == before
    assert player.generate(prompts, params) == want
    assert loaded.idle_work.do_some(lambda: False)
    assert len(captured_sizes(loaded.runner.replays._graphs)) == len(before) + 1
    assert player.generate(prompts, params) == want


@pytest.mark.gpu
def test_a_size_that_decodes_have_to_do_without_is_missed_until_it_is_captured(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_sizes, "outrun", lambda timed: set())
    loaded = load_executor(source(llama(tmp_path), device="cuda"), tmp_path, CACHE, 64, 2048)
    prompts, params = random_prompts(20), random_params(20, 3)
    player = PlanPlayer(loaded.runner, loaded.num_blocks, 16)
    want = player.generate(prompts, params, chunk=2048, max_seqs=20)
    assert loaded.idle_work.is_missed()
    for _ in range(8):
        if loaded.idle_work.is_missed():
            loaded.idle_work.do_some()
    assert not loaded.idle_work.is_missed()
    assert GraphSize(24, 24) in loaded.runner.replays._graphs.sizes.decodes
    assert player.generate(prompts, params, chunk=2048, max_seqs=20) == want


@pytest.mark.gpu
def test_other_ranks_are_told_of_each_graph_before_it_is_captured_and_none_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_sizes, "outrun", lambda timed: set())
    loaded = load_executor(source(llama(tmp_path), device="cuda"), tmp_path, CACHE, 64, 2048)
    replays, told = loaded.runner.replays, []
    before = captured_sizes(replays._graphs)

    @contextmanager
    def telling(sizes, *, adapters, asked):
        assert not set(sizes) & set(captured_sizes(replays._graphs))
        told.extend(sizes)
        assert (adapters, asked) == (False, False)
        yield

    replays.tell_captures(telling)
    for _ in range(3):
        assert loaded.idle_work.do_some(lambda: True)
    assert len(told) == 3
    assert captured_sizes(replays._graphs) == sorted([*before, *told])
