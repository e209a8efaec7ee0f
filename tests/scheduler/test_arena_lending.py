from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.events import Outcome
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.arena_lending import FIRST_PAUSE_S, LONGEST_PAUSE_S, UNUSED_S, ArenaLending
from service.scheduler.decision_tally import DecisionTally
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.toy_model import ToyExecutor
from tests.engine.toy_training import ToyListener, ToyTraining
from tests.examples import examples
from tests.manual_clock import ManualClock

NUM_BLOCKS, WANTED, STEPS_EACH = 20, 8, 10


class Scene:
    """A training that needs eight of twenty blocks."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.blocks = BlockManager(NUM_BLOCKS, 1, NoPrefixCache())
        self.lending = ArenaLending(self.blocks, self.clock)
        self.lending.begin(WANTED, STEPS_EACH)
        self.tally = DecisionTally()

    def occupy(self, num_blocks: int) -> None:
        """Requests take this many blocks."""
        if self.blocks.holds(0):
            self.blocks.free(0)
        if num_blocks:
            self.blocks.allocate(0, num_blocks, [])
        self.lending.note_return(self.tally)

    def may_use(self, is_idle: bool = False) -> bool:
        return self.lending.may_use(is_idle=is_idle)

    def lend_and_take_back(self, num_layer_steps: int) -> None:
        self.occupy(0)
        assert self.lending.borrow() == []
        self.lending.use(num_layer_steps)
        self.occupy(NUM_BLOCKS)
        assert self.blocks.arena.lent is None
        self.occupy(0)


def test_it_is_lent_while_a_quarter_of_the_rest_can_be_taken_and_kept_until_nothing_can():
    scene = Scene()
    may = []
    for num_blocks in range(NUM_BLOCKS + 1):
        scene.occupy(num_blocks)
        may.append(scene.may_use())
    assert may == [num_blocks <= 9 for num_blocks in range(NUM_BLOCKS + 1)], "twelve are beside it"
    scene.occupy(9)
    assert scene.lending.borrow() is not None
    kept = []
    for num_blocks in range(9, NUM_BLOCKS + 1):
        scene.occupy(num_blocks)
        kept.append(scene.blocks.arena.lent is not None)
    assert kept == [num_blocks <= 12 for num_blocks in range(9, NUM_BLOCKS + 1)]


def test_one_that_needs_none_never_waits():
    scene = Scene()
    scene.lending.begin(0, STEPS_EACH)
    scene.occupy(NUM_BLOCKS)
    assert scene.may_use() and scene.lending.borrow() == [] and scene.lending.use(3) is None


def test_one_that_needs_the_whole_pool_gets_it_while_nobody_has_any():
    scene = Scene()
    scene.lending.begin(NUM_BLOCKS, STEPS_EACH)
    scene.occupy(1)
    assert not scene.may_use()
    scene.occupy(0)
    assert scene.may_use() and scene.lending.borrow() == []


def test_loans_too_short_for_a_micro_batch_become_rare_and_one_that_is_not_starts_afresh():
    scene, pauses = Scene(), []
    for _ in range(9):
        scene.lend_and_take_back(STEPS_EACH - 1)
        began_s = scene.clock.now_s()
        while not scene.may_use():
            assert scene.may_use(is_idle=True), "there is nobody to spare it for"
            scene.clock.advance(FIRST_PAUSE_S / 4)
        pauses.append(scene.clock.now_s() - began_s)
    assert pauses == [min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in range(9)]
    scene.lend_and_take_back(STEPS_EACH)
    assert scene.may_use()
    scene.lend_and_take_back(1)
    scene.clock.advance(FIRST_PAUSE_S)
    assert scene.may_use()


def test_returns_are_counted_and_those_that_cost_a_micro_batch():
    scene = Scene()
    for num_layer_steps in (0, 3, STEPS_EACH, STEPS_EACH + 1):
        scene.lend_and_take_back(num_layer_steps)
    assert (scene.tally.num_arena_returns, scene.tally.num_micro_batches_lost) == (4, 2)
    scene.lending.borrow()
    scene.lending.use(1)
    scene.lending.end()
    scene.lending.note_return(scene.tally)
    assert scene.tally.num_arena_returns == 4, "the training gave it back itself"
    assert scene.blocks.pool.num_used == 0


def test_an_arena_that_is_not_used_for_long_is_given_back_and_costs_no_pause():
    scene = Scene()
    scene.lending.borrow()
    for _ in range(3):
        scene.lending.use(1)
        scene.clock.advance(UNUSED_S)
        scene.lending.note_return(scene.tally)
        assert scene.blocks.arena.lent is not None
    scene.clock.advance(0.1)
    scene.lending.note_return(scene.tally)
    assert scene.blocks.pool.num_used == 0
    assert (scene.tally.num_arena_returns, scene.may_use()) == (0, True)


def test_what_is_planned_is_told_where():
    scene = Scene()
    scene.lending.borrow()
    arena = scene.lending.use(2)
    assert arena is not None and arena == scene.blocks.arena.lent and arena.num_blocks == WANTED
    assert scene.lending.borrow() == [] and scene.lending.use(1) == arena


def test_while_there_is_no_place_it_is_not_looked_for_again_and_again():
    """A block that is being transferred cannot be moved, and it is in the middle of the others."""
    scene = Scene()
    blocks = scene.blocks = BlockManager(NUM_BLOCKS, 1, NoPrefixCache(), NUM_BLOCKS)
    lending = ArenaLending(blocks, scene.clock)
    lending.begin(12, STEPS_EACH)
    for sequence_id, num_blocks in ((0, 9), (1, 2)):
        blocks.allocate(sequence_id, num_blocks, [])
    blocks.free(0)
    blocks.swap_out([1])
    assert lending.may_use(is_idle=False) and lending.borrow() is None
    assert not lending.may_use(is_idle=False)
    blocks.swap_space.finish_all()
    scene.clock.advance(FIRST_PAUSE_S)
    assert lending.may_use(is_idle=False) and lending.borrow() == []


def request_plans(seed: int, num_blocks: int, wanted: int | None) -> tuple[list[object], int]:
    """What plans compute and preempt of requests in a random history, where requests never wait for the training; and
    how often they took its blocks."""
    chance = random.Random(seed)
    toy = ToyExecutor(num_blocks, 2, VOCABULARY)
    harness = Harness(
        num_blocks,
        2,
        max_num_seqs=6,
        max_num_batched_tokens=20,
        prefix_cache=NoPrefixCache(),
        executor=toy,
        trainings=toy,
    )
    training = None if wanted is None else ToyTraining(1, 10_000, STEPS_EACH, wanted)
    if training is not None:
        harness.engine.training.start(training, ToyListener())
    for _ in range(80):
        if chance.random() < 0.15:
            prompt = tuple(range(chance.randint(1, 20)))
            harness.add(
                harness.request(prompt, chance.randint(1, 12), chance.choice([1, 1, 2]), seed=chance.randint(0, 9))
            )
        harness.step()
    harness.engine.training.stop(1, wants_state=False)
    harness.run()
    for request_id, final in harness.finals.items():
        harness.check_against_oracle(request_id, complete=final.outcome is Outcome.FINISHED)
    computed = [
        [(item.sequence_id, item.num_computed_tokens, len(item.token_ids)) for item in plan.scheduled]
        for plan in toy.plans
        if plan.training is None
    ]
    preemptions = [(s.num_dropped, s.num_swapped) for s in harness.sink.iterations]
    return [*computed, *preemptions], sum(s.num_arena_returns for s in harness.sink.iterations)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(8, 40), share=st.floats(0.1, 1.0))
def test_no_request_is_queued_preempted_or_refused_for_a_trainings_memory(seed: int, num_blocks: int, share: float):
    wanted = max(1, int(share * num_blocks))
    assert request_plans(seed, num_blocks, wanted)[0] == request_plans(seed, num_blocks, None)[0]


def test_these_histories_do_take_it_back():
    assert sum(request_plans(seed, 16, 12)[1] for seed in range(10)) > 5
