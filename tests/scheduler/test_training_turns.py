from __future__ import annotations

import math

import pytest

from service.core.stats import Prediction
from service.core.training import TrainingOutcome, TrainingShare
from service.errors import ServerError
from service.kvcache.adapter_slots import AdapterSlots
from service.kvcache.block_manager import BlockManager
from service.kvcache.block_pool import BlockPool
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.arena_lending import ArenaLending
from service.scheduler.deferred_batching import DeferredBatching, TrainingPolicy
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.request_pool import RequestPool
from service.scheduler.training_turns import PIECE_S, TrainingTurns
from tests.manual_clock import ManualClock
from tests.scheduler.test_request_pool import make_group
from tests.scheduler.training_play import TrainingPlay


def empty_pool() -> RequestPool:
    return RequestPool(FirstComeFirstServed(), 16, AdapterSlots(0, BlockPool(1)))


def made_turns(num_blocks: int = 1, policy: TrainingPolicy | None = None) -> TrainingTurns:
    lending = ArenaLending(BlockManager(num_blocks, 1, NoPrefixCache()), ManualClock())
    return TrainingTurns(policy or DeferredBatching(0.0), lending)


def next_share(turns: TrainingTurns) -> TrainingShare:
    turn = turns.take(turns.num_next(empty_pool(), 0.0), 0.0)
    assert turn is not None
    return turn.share


class Turns:
    """Turns of a training whose layer steps take `step_s`, with an empty request pool."""

    def __init__(self, num_steps: int, step_s: float = 0.001, policy: TrainingPolicy | None = None) -> None:
        self.turns = made_turns(policy=policy)
        self.turns.start(7, num_steps, num_steps)
        self._num_steps, self._step_s = num_steps, step_s
        self._left = num_steps

    def take(self) -> TrainingShare:
        return next_share(self.turns)

    def finish(self, share: TrainingShare, left: int | None = None) -> Prediction | None:
        """left: layer steps left in the iteration, if the executor reports another number than expected."""
        self._left = left or self._left - share.num_layer_steps or self._num_steps
        seconds = share.num_layer_steps * self._step_s
        return self.turns.finish(TrainingOutcome(7, share.num_layer_steps, seconds, self._left))

    def play(self) -> int:
        share = self.take()
        self.finish(share)
        return share.num_layer_steps


def test_the_first_piece_is_one_step_and_then_as_many_as_are_short():
    turns = Turns(9)
    assert [turns.play() for _ in range(6)] == [1, 4, 4, 4, 4, 1]
    assert PIECE_S == 0.004


def test_a_step_longer_than_a_piece_is_a_piece():
    turns = Turns(3, step_s=1.0)
    assert [turns.play() for _ in range(5)] == [1] * 5


def test_pieces_that_overlap_go_on_from_each_other():
    turns = Turns(9)
    turns.play()
    shares = [turns.take() for _ in range(4)]
    assert [share.num_layer_steps for share in shares] == [4, 4, 4, 4]
    predictions = [turns.finish(share) for share in shares]
    assert predictions == [Prediction("training", pytest.approx(0.004), pytest.approx(0.004))] * 4
    assert turns.play() == 1


class AskedPolicy(DeferredBatching):
    """Makes all requests wait, and records what it was asked."""

    def __init__(self) -> None:
        super().__init__(math.inf)
        self.asked: list[tuple[float, float]] = []

    def admits(self, waited_s: float, step_s: float) -> bool:
        self.asked.append((waited_s, step_s))
        return super().admits(waited_s, step_s)


def test_what_is_left_of_an_iteration_begins_with_the_pieces_that_run():
    policy, pool = AskedPolicy(), empty_pool()
    turns = Turns(12, policy=policy)
    turns.play()
    pool.add(make_group("waits"))
    for now_s in (1.0, 2.0, 3.0, 4.0):
        assert turns.turns.take(turns.turns.num_next(pool, now_s), now_s) is not None
    assert [waited_s for waited_s, _ in policy.asked] == [1.0, 2.0, 3.0, 4.0]
    assert [step_s for _, step_s in policy.asked] == pytest.approx([0.011, 0.011, 0.011, 0.023])


def test_what_the_executor_says_is_left_counts():
    """A micro-batch was dropped and is recomputed."""
    turns = Turns(9)
    turns.play()
    turns.finish(turns.take(), left=9)
    assert [turns.play() for _ in range(3)] == [4, 4, 1]


@pytest.mark.parametrize("num_running", [1, 2])
def test_an_iteration_may_be_shorter_than_others(num_running: int):
    """Validation examples have only a forward pass, with the steps of a training's; this is not announced."""
    forward_s, backward_s, usual, short = 0.001, 0.003, 8, 4
    turns, left, running = made_turns(), usual, list[TrainingShare]()
    turns.start(7, usual, usual)
    kinds = iter([usual, usual, usual, short, short, usual] * 20)
    num_steps, errors = next(kinds), list[float]()
    for _ in range(400):
        while len(running) < num_running:
            running.append(next_share(turns))
        share, seconds = running.pop(0), 0.0
        for _ in range(share.num_layer_steps):
            seconds += forward_s if num_steps - left < short else backward_s
            left -= 1
            if left == 0:
                left = num_steps = next(kinds, usual)
        prediction = turns.finish(TrainingOutcome(7, share.num_layer_steps, seconds, left))
        if prediction is not None:
            errors.append(abs(prediction.predicted_s / prediction.actual_s - 1))
    settled = errors[200:]
    assert sum(error < 0.1 for error in settled) >= (0.9 if num_running == 1 else 0.7) * len(settled)


def test_the_outcome_of_a_training_that_has_ended_changes_nothing():
    turns = Turns(9)
    share = turns.take()
    turns.turns.stop()
    assert turns.finish(share) is None
    assert not turns.turns.is_runnable
    turns.turns.start(8, 3, 3)
    assert turns.turns.finish(TrainingOutcome(7, 1, 1.0, 2)) is None


def test_fewer_steps_than_were_planned_say_nothing():
    turns = Turns(9)
    turns.play()
    share = turns.take()
    assert turns.turns.finish(TrainingOutcome(7, share.num_layer_steps - 1, 5.0, 0)) is None
    assert turns.turns.predicted_s is None


def test_the_estimate_is_told_of_the_piece_that_runs():
    turns = Turns(9)
    assert turns.turns.predicted_s is None
    turns.play()
    turns.take()
    assert turns.turns.predicted_s == pytest.approx(0.004)


def test_an_iteration_whose_memory_was_taken_back_is_planned_from_its_beginning():
    turns = made_turns(num_blocks=8)
    turns.start(7, 9, 9, num_blocks=8)
    starts = []
    for _ in range(4):
        share = next_share(turns)
        starts.append(turns._pieces[0].start)
        assert share.arena is not None and share.arena.num_blocks == 8
        turns.finish(TrainingOutcome(7, share.num_layer_steps, 0.001 * share.num_layer_steps, 9 - starts[-1] - 1))
        if len(starts) == 2:
            turns.lending._blocks.allocate(0, 1, [])
            assert not turns.num_next(empty_pool(), 0.0) and not turns.num_idle(empty_pool())
            turns.lending._blocks.free(0)
    assert starts[0] == starts[2] == 0 < starts[3]


def test_one_that_needs_more_blocks_than_there_are_cannot_start():
    turns = made_turns(num_blocks=8)
    with pytest.raises(ServerError, match=r"needs 9 KV blocks, but the KV cache has only 8.*kv-cache-memory") as raised:
        turns.start(7, 9, 9, num_blocks=9)
    assert raised.value.code == "out_of_memory"
    assert not turns.is_runnable


@pytest.mark.parametrize("overlap", [False, True])
def test_every_layer_step_is_predicted_but_the_first(overlap: bool):
    play = TrainingPlay(DeferredBatching(0.0), [0.003] * 5, num_iterations=30, overlap=overlap)
    play.run(until_s=1.0)
    stats = play.harness.sink.trainings
    assert sum(each.num_layer_steps for each in stats) == 150
    assert sum(each.seconds for each in stats) == pytest.approx(150 * 0.003)
    assert sum(each.prediction is None for each in stats) <= 2
    assert all(p.predicted_s == pytest.approx(p.actual_s) for each in stats if (p := each.prediction))
    assert not math.isinf(play.clock.now_s())
