"""Proves that the suite can fail where a training's memory is concerned: each fault put in on purpose is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from service.core.block_moves import BlockCopy
from service.core.events import Outcome
from service.core.iteration import IterationPlan
from service.core.training import Arena
from service.engine.live_requests import LiveRequests
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_pool import KnownBlocks
from service.kvcache.contiguous_run import OUT_OF_THE_QUESTION
from service.kvcache.training_arena import TrainingArena
from service.scheduler import arena_lending
from service.scheduler.arena_lending import ArenaLending
from service.scheduler.decode_batch import DecodeBatch
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.late_executor import LateIteration
from tests.engine.test_engine import SometimesSwap
from tests.engine.toy_model import ToyExecutor
from tests.engine.toy_training import STEP_S, ToyListener, ToyTraining, number_after

Patch = pytest.MonkeyPatch

NUM_BLOCKS, NUM_ITERATIONS, STEPS_EACH, ARENA = 25, 150, 4, 9


class SomeSlack:
    """Layer steps run between all iterations of requests."""

    def admits(self, waited_s: float, step_s: float) -> bool:
        return True

    def slack_s(self, plan: IterationPlan) -> float:
        return 2.5 * STEP_S


class LosesMoves(FaultyExecutor):
    """The third launch that would make room for a training fails."""

    def __init__(self) -> None:
        super().__init__(frozenset(), num_blocks=NUM_BLOCKS, transfer_delay=2)
        self.num_moves = 0

    def launch(self, plan: IterationPlan) -> LateIteration:
        if plan.training is not None and plan.copies:
            self.num_moves += 1
            if self.num_moves == 3:
                self.failing_launches = frozenset({self.num_launched + 1})
        return super().launch(plan)


def training_scenario(overlap: bool, patch: Patch) -> None:
    """A training, and requests that need its blocks again and again; choices that share blocks, idle adapters,
    transfers; and one plan that moves blocks fails."""
    patch.setattr(arena_lending, "FIRST_PAUSE_S", 0.02)
    patch.setattr(arena_lending, "LONGEST_PAUSE_S", 0.04)
    executor = LosesMoves()
    harness = Harness(
        NUM_BLOCKS,
        max_num_batched_tokens=24,
        executor=executor,
        trainings=executor,
        preemption=SometimesSwap(0.5),
        num_host_blocks=NUM_BLOCKS,
        num_adapter_slots=2,
        overlap=overlap,
        training=SomeSlack(),
    )
    executor.users, executor.holders = harness.running_with, harness.sequences_with
    executor.moving = harness.blocks.swap_space.swapping_sequence_ids
    adapters = [None, None, harness.adapter(2), harness.adapter(2)]
    training, listener = ToyTraining(0, NUM_ITERATIONS, STEPS_EACH, ARENA), ToyListener()

    def step() -> None:
        if not harness.scheduler.training.is_runnable and not training.is_over:
            training.training_id += 1
            harness.engine.training.start(training, listener)
        harness.step()

    groups = []
    for number in range(60):
        for _ in range(2 if number % 6 else 50):
            step()
        prompt = (1, 2, 3, 4, 5, 6, 7, 8, 9 + number % 2)[: 9 if number % 5 else 2]
        adapter, max_tokens = adapters[number % 4], 8 if number % 3 else 30
        request = harness.request(prompt, max_tokens, 1 + number % 2, seed=number, adapter=adapter)
        assert harness.add(request)
        groups.append(harness.scheduler.pool.get(request.request_id))
    for _ in range(3000):
        if not harness.engine.has_work and training.is_over:
            break
        step()
    assert training.numbers == [number_after(n, STEPS_EACH) for n in range(NUM_ITERATIONS + 1)]
    assert [fault is None for fault in listener.ends] == [False, True]
    for group in groups:
        assert group is not None
        is_whole = not executor.hit.intersection(sequence.sequence_id for sequence in group.sequences)
        assert (harness.finals[group.request.request_id].outcome is Outcome.FINISHED) == is_whole
        for choice in range(group.request.sampling.n):
            harness.check_against_oracle(group.request.request_id, choice, complete=is_whole)
    harness.check_nothing_left()
    stats = harness.sink.iterations
    assert executor.hit and executor.num_moves > 6
    assert sum(s.num_arena_returns for s in stats) > 3
    assert sum(s.num_micro_batches_lost for s in stats) > 0 < training.num_dropped
    assert sum(s.num_adapter_evictions for s in stats) > 0
    assert sum(s.num_cached_tokens for s, _, _ in harness.sink.requests) > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_fault_the_scenario_of_a_training_passes(overlap: bool, monkeypatch: Patch):
    training_scenario(overlap, monkeypatch)


def moves_not_told(patch: Patch) -> None:
    borrow = ArenaLending.borrow

    def silent(self: ArenaLending) -> list[BlockCopy] | None:
        return None if borrow(self) is None else []

    patch.setattr(ArenaLending, "borrow", silent)


def a_batch_that_does_not_hear_of_moves(patch: Patch) -> None:
    patch.setattr(DecodeBatch, "dissolve", lambda self, running: None)


def a_prefix_left_behind(patch: Patch) -> None:
    patch.setattr(KnownBlocks, "move", lambda self, moved: None)


def an_overwritten_prefix_still_known(patch: Patch) -> None:
    lend_arena = BlockManager.lend_arena

    def unforgotten(self: BlockManager, num_blocks: int) -> list[BlockCopy] | None:
        with Patch.context() as inner:
            inner.setattr(self._prefix_cache.known, "forget", lambda block_ids: None)
            return lend_arena(self, num_blocks)

    patch.setattr(BlockManager, "lend_arena", unforgotten)
    patch.setattr("tests.engine.harness.check_blocks", lambda blocks: None)


def an_arena_that_is_kept_in_use_when_it_is_taken_back(patch: Patch) -> None:
    """The training goes on in blocks that now belong to others."""
    use = ArenaLending.use
    first: list[Arena | None] = []

    def stale(self: ArenaLending, num_layer_steps: int) -> Arena | None:
        first.append(use(self, num_layer_steps))
        return first[0]

    patch.setattr(ArenaLending, "use", stale)


def a_block_of_the_arena_given_to_a_sequence(patch: Patch) -> None:
    lend = TrainingArena.lend

    def leaky(self: TrainingArena, first_block: int, num_blocks: int) -> None:
        lend(self, first_block, num_blocks)
        self._pool.release_empty([first_block])

    patch.setattr(TrainingArena, "lend", leaky)
    patch.setattr("tests.engine.harness.check_blocks", lambda blocks: None)


def an_arena_that_keeps_what_is_needed(patch: Patch) -> None:
    patch.setattr(TrainingArena, "free_blocks", lambda self, num_blocks: None)


def blocks_on_the_way_are_moved(patch: Patch) -> None:
    costs = BlockManager._costs_of_blocks
    patch.setattr(BlockManager, "_costs_of_blocks", lambda self: [cost % OUT_OF_THE_QUESTION for cost in costs(self)])


def an_arena_that_outlives_its_training(patch: Patch) -> None:
    patch.setattr(ArenaLending, "end", lambda self: None)


def lost_moves_believed_made(patch: Patch) -> None:
    lose = LiveRequests.lose
    patch.setattr(LiveRequests, "lose", lambda self, groups, plan: lose(self, groups, replace(plan, copies=())))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        moves_not_told,
        a_batch_that_does_not_hear_of_moves,
        a_prefix_left_behind,
        an_overwritten_prefix_still_known,
        an_arena_that_is_kept_in_use_when_it_is_taken_back,
        a_block_of_the_arena_given_to_a_sequence,
        an_arena_that_keeps_what_is_needed,
        blocks_on_the_way_are_moved,
        an_arena_that_outlives_its_training,
        lost_moves_believed_made,
    ],
)
def test_a_fault_of_a_trainings_memory_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError, StopIteration)):
        training_scenario(overlap, monkeypatch)


def lent_again() -> None:
    """The same blocks, after a request has used them."""
    toy = ToyExecutor(10, 4, VOCABULARY)
    harness = Harness(10, executor=toy, trainings=toy)
    training, listener = ToyTraining(1, 3, STEPS_EACH, 10), ToyListener()
    harness.engine.training.start(training, listener)
    for _ in range(2):
        harness.step()
    harness.add(harness.request((1, 2, 3), 2))
    harness.run(max_steps=100)
    assert (harness.blocks.arena.num_lent, training.num_dropped) == (2, 1)
    assert training.numbers == [number_after(n, STEPS_EACH) for n in range(4)]
    assert listener.ends == [None]


def test_what_was_computed_in_blocks_that_were_lent_before_is_not_gone_on_from(monkeypatch: Patch):
    lent_again()
    lend = TrainingArena.lend

    def under_the_same_lease(self: TrainingArena, first_block: int, num_blocks: int) -> None:
        lend(self, first_block, num_blocks)
        self.lent = Arena(1, first_block, num_blocks)

    monkeypatch.setattr(TrainingArena, "lend", under_the_same_lease)
    with pytest.raises(AssertionError):
        lent_again()
