from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from service.config import CacheConfig
from service.core.iteration import INVALID_TOKEN_ID, NO_DECODES, IterationPlan, ScheduledDecodes
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.distributed.drawn_messages import HeardDraws, write_drawn
from service.layers.pipeline_stage import PlannedStage
from service.runner import graph_sizes as sizes_module
from service.runner.cuda_graphs import StepGraphs
from service.runner.graph_sizes import GraphSize, graph_sizes
from service.runner.load import load_executor
from service.runner.model_runner import LaunchedIteration, ModelRunner
from service.runner.trainings import LaunchedShare
from tests.distributed.scene import Done
from tests.engine.harness import Harness
from tests.equivalence.family_list import FAMILIES
from tests.models.checkpoints import gpt_oss, llama, random_prompts
from tests.runner import uncaptured
from tests.runner.loading import source
from tests.runner.plan_player import PlanPlayer
from tests.runner.test_cuda_graphs import no_wait_for_the_device, random_params

GREEDY = SamplingParams(max_tokens=5, temperature=0.0)


class Queued(PlannedStage):
    """Stages of one process, in the order of their calls."""

    def __init__(self, index: int, between: deque[Tensor]) -> None:
        super().__init__(2, index)
        self._between = between

    def receive(self, into: Tensor) -> None:
        into.copy_(self._between.popleft() if self._between else torch.zeros_like(into))

    def send(self, hidden: Tensor) -> None:
        self._between.append(hidden)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("model"))


def loaded_as(folder: Path, stage: PlannedStage | None, max_num_seqs: int = 4, **how: object) -> ModelRunner:
    device, more = how.pop("device", "cpu"), {} if stage is None else {"stage": stage}
    there, cache = source(folder, device=device), CacheConfig(8, 0.5, 4 << 20)
    return load_executor(there, folder, cache, max_num_seqs, 64, **more, **how).runner


def both_stages(folder: Path, between: deque[Tensor], **how: object) -> list[ModelRunner]:
    """Each warms up by itself."""
    stages = []
    for index in range(2):
        stages.append(loaded_as(folder, Queued(index, between), 8, **how))
        between.clear()
    return stages


def prompt(row: int, *token_ids: int) -> ScheduledSequence:
    return ScheduledSequence(row, row, token_ids, 0, 0, (row,), GREEDY, (Sample(row, 0),))


def decode_of(row: int, position: int) -> ScheduledDecodes:
    one = [np.array([value], np.int64) for value in (row, row, 0, position, 1)]
    return ScheduledDecodes(1, *one, 1, NO_DECODES.grown)


@pytest.fixture(scope="module")
def stages(folder: Path) -> tuple[ModelRunner, ModelRunner, deque[Tensor]]:
    between = deque[Tensor]()
    first, last = (loaded_as(folder, Queued(index, between)) for index in range(2))
    between.clear()  # of the start: each stage warms up by itself here
    return first, last, between


def test_each_step_is_handed_over_once_and_drawn_by_the_last_stage_alone(folder: Path, stages):
    first, last, between = stages
    whole = loaded_as(folder, None)
    plan = IterationPlan((prompt(1, 5, 6, 7), prompt(2, 9)))
    assert first.launch(plan).wait().token_ids == ()
    (hidden,) = between
    assert hidden.shape == (4, 64)
    drawn = last.launch(plan).wait().token_ids
    assert drawn == whole.launch(plan).wait().token_ids
    assert not between

    first.note_drawn(np.array([1, 2]), np.array(drawn))
    going_on = IterationPlan((), decodes=decode_of(1, 3))
    first.launch(going_on).wait()
    assert last.launch(going_on).wait().token_ids == whole.launch(going_on).wait().token_ids


def test_a_step_that_fails_on_a_stage_is_handed_over_all_the_same_and_nothing_can_be_drawn_of_it(
    stages, monkeypatch: pytest.MonkeyPatch
):
    first, last, between = stages
    plan = IterationPlan((prompt(3, 8, 9),))
    with monkeypatch.context() as patch:
        patch.setattr(first._forward_pass, "of_all_tokens", lambda *step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            first.launch(plan)
    assert [hidden.isnan().all() for hidden in between] == [True]
    assert last.launch(plan).wait().token_ids == (INVALID_TOKEN_ID,)
    first.launch(plan).wait()
    assert last.launch(plan).wait().token_ids != (INVALID_TOKEN_ID,)


def test_the_last_stage_takes_what_is_handed_over_also_where_its_own_step_fails(
    stages, monkeypatch: pytest.MonkeyPatch
):
    first, last, between = stages
    plan = IterationPlan((prompt(3, 8, 9),))
    first.launch(plan).wait()
    with monkeypatch.context() as patch:
        patch.setattr(last._forward_pass, "of_logit_rows", lambda *step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            last.launch(plan)
    assert not between


class InTurn:
    """An executor of two stages: what the last one draws is told to the first one. replayed: of each, how many steps
    were."""

    def __init__(self, first: ModelRunner | Unwaited, last: ModelRunner) -> None:
        self._stages = first, last
        self._draws = HeardDraws(first.note_drawn)
        self._num_plans = 0
        self.replayed = [0, 0]

    def launch(self, plan: IterationPlan) -> Done:
        self._num_plans += 1
        if plan.num_draws:
            self._draws.expect(self._num_plans, plan)
        results = [stage.launch(plan).wait() for stage in self._stages]
        self.replayed = [num + result.is_replayed for num, result in zip(self.replayed, results, strict=True)]
        assert results[0].token_ids == ()
        if plan.num_draws:
            self._draws.hear(write_drawn(self._num_plans, results[1].token_ids))
        return Done(results[1])


def check_graphs(first: ModelRunner | Unwaited, last: ModelRunner, whole: ModelRunner) -> list[int]:
    """Random lengths, so that the flat batch's order is not the plan's; some steps have prompts, and some draws ask for
    more than a graph gives. Returns how many steps of each stage were replayed."""
    chance, in_turn = random.Random(3), InTurn(first, last)
    for seed in range(2):
        count, max_seqs, chunk = chance.randint(6, 16), chance.choice([3, 7]), chance.choice([5, 31])
        prompts = [random_prompts(48)[i][: chance.randint(1, 40)] for i in chance.sample(range(48), count)]
        told = [
            PlanPlayer(runner, 60, 8).generate(prompts, random_params(count, seed), chunk=chunk, max_seqs=max_seqs)
            for runner in (in_turn, whole)
        ]
        assert told[0] == told[1]
    return in_turn.replayed


@pytest.mark.parametrize(
    ("graphed", "drawing_tokens"),
    [((True, True), 512), ((True, True), 32), ((True, False), 32)],
    ids=["both", "both, some that draw nothing", "first"],
)
def test_by_graphs_stages_draw_what_one_draws_whichever_has_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, graphed: tuple[bool, bool], drawing_tokens: int
):
    """All but the capture."""
    uncaptured.without_capture(monkeypatch)
    monkeypatch.setattr(sizes_module, "DRAWING_TOKENS", drawing_tokens)
    between = deque[Tensor]()
    stages = both_stages(folder, between)
    for stage, has_graphs in zip(stages, graphed, strict=True):
        if has_graphs:
            stage.replays.capture(graph_sizes(8, 64))
    replayed = check_graphs(*stages, loaded_as(folder, None, 8))
    assert [num > 10 for num in replayed] == list(graphed)
    for stage, has_graphs in zip(stages, graphed, strict=True):
        sizes = [each.size for each in stage.replays.recent_steps() if each.size is not None] if has_graphs else []
        assert {size.is_mixed for size in sizes} == ({True, False} if has_graphs else set()), "with prompts and without"


def tokens_of(executor: object, num_lanes: int) -> Mapping[tuple[str, int], list[int]]:
    """Of requests of many lengths, some of which come later: lanes have as many decodes each, at times one more."""
    harness = Harness(60, 8, 8, 64, executor=executor, num_lanes=num_lanes)
    params = random_params(10, seed=1)
    for number, prompt_ids in enumerate(random_prompts(10)):
        chosen = {"temperature": params[number].temperature, "seed": number}
        assert harness.add(harness.request(tuple(prompt_ids[: 3 + number]), 12 + 5 * (number % 4), **chosen))
        if number > 6:
            for _ in range(9):
                harness.step()
    harness.run()
    return dict(harness.tokens)


def check_lanes(patch: pytest.MonkeyPatch, stages: list[ModelRunner], whole: ModelRunner, num_lanes: int) -> None:
    again = Counter[StepGraphs]()
    replay_again = StepGraphs.replay_again

    def noting(graphs: StepGraphs, *args: object) -> object:
        again[graphs] += 1
        return replay_again(graphs, *args)

    patch.setattr(StepGraphs, "replay_again", noting)
    in_turn = InTurn(*stages)
    assert tokens_of(in_turn, num_lanes) == tokens_of(whole, 1)
    assert len(again) == 2
    assert all(num > 0.5 * replayed for num, replayed in zip(again.values(), in_turn.replayed, strict=True))


@pytest.mark.parametrize("num_lanes", [2, 1])
def test_the_same_decodes_of_each_lane_are_replayed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_lanes: int
):
    """Lanes take turns, with one graph: its inputs are the other's meanwhile."""
    uncaptured.without_capture(monkeypatch)
    stages = both_stages(folder, deque[Tensor]())
    for stage in stages:
        stage.replays.capture([GraphSize(8, 8), GraphSize(64, 8)])
    check_lanes(monkeypatch, stages, loaded_as(folder, None, 8), num_lanes)


def test_by_graphs_stages_of_transformers_modules_draw_what_one_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    uncaptured.without_capture(monkeypatch)
    folder, between = smollm3(tmp_path), deque[Tensor]()
    stages = both_stages(folder, between)
    for stage in stages:
        stage.replays.capture(graph_sizes(8, 64))
    assert min(check_graphs(*stages, loaded_as(folder, None, 8))) > 10


def test_a_replayed_step_that_fails_is_handed_over_all_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch):
    uncaptured.without_capture(monkeypatch)
    between = deque[Tensor]()
    first = loaded_as(folder, Queued(0, between))
    first.replays.capture([GraphSize(4, 4)])
    first.launch(IterationPlan((prompt(1, 5, 6, 7),))).wait()
    between.clear()
    monkeypatch.setattr(first.replays._graphs, "run", lambda *step, **how: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        first.launch(IterationPlan((), decodes=decode_of(1, 3)))
    assert [hidden.isnan().all() for hidden in between] == [True]


def smollm3(folder: Path) -> Path:
    """By transformers' modules; queries of one layer are not turned."""
    (family,) = (family for family in FAMILIES if family.name == "SmolLM3")
    return family.save(folder)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [llama, gpt_oss, smollm3])
def test_two_stages_on_one_gpu_replay_their_graphs(tmp_path: Path, make: Callable[[Path], Path]):
    folder, between, how = make(tmp_path), deque[Tensor](), {"device": "cuda"}
    stages = both_stages(folder, between, **how)
    replayed = check_graphs(*stages, loaded_as(folder, None, 8, enforce_eager=True, **how))
    assert min(replayed) > 10


@pytest.mark.gpu
def test_two_stages_on_one_gpu_replay_the_same_decodes_of_each_lane_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    stages = both_stages(folder, deque[Tensor](), device="cuda")
    check_lanes(monkeypatch, stages, loaded_as(folder, None, 8, enforce_eager=True, device="cuda"), 2)


class Unwaited:
    """A stage that must not wait for its device, whatever it is told."""

    def __init__(self, stage: ModelRunner) -> None:
        self._stage = stage

    def launch(self, plan: IterationPlan) -> LaunchedIteration | LaunchedShare:
        with no_wait_for_the_device():
            return self._stage.launch(plan)

    def note_drawn(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        with no_wait_for_the_device():
            self._stage.note_drawn(rows, token_ids)


@pytest.mark.gpu
def test_a_stage_before_the_last_one_never_waits_for_its_device(folder: Path):
    """Kernel by kernel and by graphs."""
    first, last = both_stages(folder, deque[Tensor](), device="cuda")
    whole = loaded_as(folder, None, 8, enforce_eager=True, device="cuda")
    assert min(check_graphs(Unwaited(first), last, whole)) > 10
