"""Functions that test ranks run as pipeline stages of a model: rank 0 has the engine and the last stage, and sends each
plan to the others.

Here plans are sent as pickles through a file, so that rank 0 never waits for a reader, as with the ring. How a service
sends them is tested in tests/distributed and tests/e2e.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from service.config import CacheConfig, LoraConfig, ParallelConfig
from service.core.iteration import IterationPlan, IterationResult
from service.core.sequence import Sequence
from service.distributed.drawn_messages import HeardDraws, write_drawn
from service.distributed.process_groups import place_of
from service.engine.ports import PendingIteration
from service.layers.pipeline_stage import RankPlace
from service.layers.tensor_parallel import TensorParallel
from service.lora.adapter_store import HostAdapter
from service.runner.choices.step_choices import StepChoices
from service.runner.choices.timer import timer_of
from service.runner.load import LoadedModel, load_executor
from service.scheduler.speculation import Speculation
from tests.engine.harness import Harness
from tests.engine.test_engine import SometimesSwap
from tests.equivalence.rank_work import (
    BLOCK_SIZE,
    BUDGET,
    MAX_NUM_SEQS,
    MAX_RANK,
    NUM_SLOTS,
    Answered,
    Asked,
    stage_over_gpus,
)
from tests.runner.loading import source

Message = IterationPlan | bytes | None
"""A plan, the ids drawn by one, or the end."""


class Control:
    """From rank 0 to all others, in order."""

    def __init__(self, path: Path, num_ranks: int) -> None:
        self._store = dist.FileStore(str(path), num_ranks)
        self._store.set_timeout(timedelta(seconds=60))
        self._number = 0

    def tell(self, message: Message) -> None:
        self._number += 1
        self._store.set(str(self._number), pickle.dumps(message))

    def hear(self) -> Message:
        """Waits for the next message and returns it."""
        self._number += 1
        return pickle.loads(self._store.get(str(self._number)))


class Told:
    """Rank 0's executor, which also sends the plans to the others."""

    def __init__(self, loaded: LoadedModel, control: Control) -> None:
        self._loaded = loaded
        self._control = control
        self._num_plans = 0

    def launch(self, plan: IterationPlan) -> PendingIteration:
        self._num_plans += 1
        self._control.tell(plan)
        return _Late(self._loaded, self._control, plan, self._num_plans)


class _Late(NamedTuple):
    loaded: LoadedModel
    control: Control
    plan: IterationPlan
    number: int

    def is_done(self) -> bool:
        return False

    def wait(self) -> IterationResult:
        result = self.loaded.runner.launch(self.plan).wait()
        if self.plan.num_draws:
            self.control.tell(write_drawn(self.number, result.token_ids))
        return result


def follow(loaded: LoadedModel, control: Control, *, is_first: bool) -> None:
    """Execute plans until there are no more."""
    draws = HeardDraws(loaded.runner.note_drawn) if is_first else None
    number, launched = 0, deque[PendingIteration]()
    while True:
        match control.hear():
            case None:
                return
            case bytes(drawn):
                if draws is not None:
                    draws.hear(drawn)
            case plan:
                number += 1
                if draws is not None and plan.num_draws:
                    draws.expect(number, plan)
                launched.append(loaded.runner.launch(plan))
                launched.popleft().wait()


class Counted(NamedTuple):
    """answered: rank 0's answers. calls: torch.distributed's tensor calls by name while requests were computed, and the
    number of plans that computed something, and of drafts. most_blocks: the most in use at once."""

    answered: Answered | None
    calls: Counter[str]
    num_plans: int
    num_drafts: int = 0
    most_blocks: int = 0


class Remembered:
    """A Drafter that drafts known answers, but replaces every third token by another one."""

    def __init__(self, known: Mapping[tuple[int, ...], list[int]]) -> None:
        self._known = known

    def draft(self, sequence: Sequence, num_known: int, num: int) -> tuple[int, ...]:
        num_prompt = sequence.num_prompt_tokens
        first = num_known - num_prompt
        said = self._known[tuple(sequence.token_ids[:num_prompt])][first : first + num]
        return tuple(token if place % 3 else abs(token - 1) for place, token in enumerate(said, first))


def answer_in_stages(
    parallel: TensorParallel,
    folder: Path,
    asked: list[Asked],
    max_tokens: int,
    config: ParallelConfig,
    control_path: Path,
    num_blocks: int | None = None,
    adapters: Mapping[str, Path] | None = None,
    num_lanes: int | None = None,
    known: Mapping[tuple[int, ...], list[int]] | None = None,
    window: int | None = None,
    device: str = "cpu",
) -> Counted:
    """Answer all requests at once. control_path: a file that does not exist yet. adapters: folders by name; each rank
    reads them itself. num_lanes: batches in flight; None: one per stage. known: prompt -> its answer, so that most
    drafts are right. window: of the layers with a sliding window, which then have separate blocks. device: with "cuda"
    there are two stages of one rank each."""
    place = stage_place(parallel, config, device)
    cache = CacheConfig(BLOCK_SIZE, 0.5, 4 << 20, swap_bytes=1 << 20, by_layer_groups=window is not None)
    how = {"parallel": place.parallel, "stage": place.stage}
    lora = LoraConfig(NUM_SLOTS, MAX_RANK) if adapters else None
    loaded = load_executor(source(folder, device=device), folder, cache, MAX_NUM_SEQS, BUDGET, lora=lora, **how)
    store = loaded.adapters
    read = {} if store is None or adapters is None else {name: store.read(name, at) for name, at in adapters.items()}
    calls, plans = Counter[str](), list[IterationPlan]()
    compute = loaded.runner._compute
    loaded.runner._compute = lambda plan: (plans.append(plan), compute(plan))[1]
    control = Control(control_path, config.num_ranks)
    with counted(calls):
        if parallel.rank > 0:
            follow(loaded, control, is_first=place.stage.index == 0)
            return Counted(None, calls, len(plans))
        executor, num_lanes = Told(loaded, control), num_lanes or config.num_stages
        told, most_blocks = _answered(loaded, executor, asked, max_tokens, num_blocks, num_lanes, read, known, window)
    control.tell(None)
    return Counted(told, calls, len(plans), sum(plan.num_drafts for plan in plans), most_blocks)


def stage_place(parallel: TensorParallel, config: ParallelConfig, device: str) -> RankPlace:
    """The rank's place. On "cuda" there are two stages."""
    if device == "cuda":
        return stage_over_gpus(parallel)
    return place_of(parallel.rank, config, torch.device("cpu"))


def _answered(
    loaded: LoadedModel,
    executor: Told,
    asked: list[Asked],
    max_tokens: int,
    num_blocks: int | None,
    num_lanes: int,
    adapters: Mapping[str, HostAdapter],
    known: Mapping[tuple[int, ...], list[int]] | None,
    window: int | None,
) -> tuple[Answered, int]:
    harness = Harness(
        num_blocks or loaded.num_blocks,
        BLOCK_SIZE,
        MAX_NUM_SEQS,
        BUDGET,
        executor=executor,
        num_host_blocks=loaded.num_host_blocks,
        preemption=SometimesSwap(0.5),
        num_lanes=num_lanes,
        num_adapter_slots=NUM_SLOTS if adapters else 0,
        speculation=None if known is None else Speculation(3, BUDGET - 1, lambda: Remembered(known)),
        window=window,
        groups=None if window is None else loaded.layer_groups.tables,
    )
    most_blocks = 0
    for prompt, sampling, adapter in asked:
        assert harness.add(harness.request(prompt, max_tokens, adapter=adapters.get(adapter), **sampling))
    while harness.engine.has_work:
        harness.step()
        most_blocks = max(most_blocks, harness.blocks.pool.num_used)
    assert len(harness.finals) == len(asked)
    preempted = sum(stats.num_preemptions for stats, *_ in harness.sink.requests)
    tokens, logprobs = dict(harness.tokens), dict(harness.logprobs)
    told = Answered(tokens, logprobs, harness.prompt_logprobs, preempted, loaded.num_blocks, loaded.block_bytes)
    return told, most_blocks


def choices_in_stages(
    parallel: TensorParallel, folder: Path, file: Path, times: int, device: str = "cpu"
) -> list[StepChoices]:
    """The choices at each of `times` starts of two stages with this file. Only the first start may time anything."""
    place = stage_place(parallel, ParallelConfig(1, 2), device)
    cache, made = CacheConfig(BLOCK_SIZE, 0.5, 4 << 20), list[StepChoices]()
    for number in range(times):
        timer = timer_of(torch.device(device)) if number == 0 else _never
        how = {"choices_file": file, "stage": place.stage, "timer": timer}
        asked = source(folder, "bfloat16", device=device)
        made.append(load_executor(asked, folder, cache, MAX_NUM_SEQS, BUDGET, **how).choices)
    place.stage.least(0)  # what the first stage has handed over is kept until the last one has it
    return made


def _never(launches: object) -> float:
    raise AssertionError("timed")


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Count the calls that send tensors between ranks in this context, except the tests' own control messages."""
    original = {name: getattr(dist, name) for name in ("recv", "isend", "all_reduce", "all_gather_into_tensor")}

    def counting(name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            calls[name] += 1
            return original[name](*args, **more)

        return call

    for name in original:
        setattr(dist, name, counting(name))
    try:
        yield
    finally:
        for name, function in original.items():
            setattr(dist, name, function)
