"""Stages of a toy model behind one engine: control by the real ring, hidden states by queues, against the oracle."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from service.core.events import Outcome
from service.core.iteration import Int64Array, IterationPlan, IterationResult
from service.distributed.control_ring import MessageKind, RingWriter
from service.distributed.late_launch import LateLaunch
from service.distributed.rank_status import Fact
from service.scheduler.speculation import Speculation
from tests.distributed.random_traffic import add_random_request
from tests.distributed.scene import Done, Scene
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.test_engine import SometimesSwap
from tests.engine.toy_drafts import ToyDrafts
from tests.engine.toy_grammar import ToyMasker
from tests.engine.toy_model import ToyExecutor

Patch = pytest.MonkeyPatch
NUM_BLOCKS = 24
PATIENCE_S = 3.0


class ToyStage(ToyExecutor):
    """One stage: what it hands over says of each sequence what it read, and all that the stages before it read. Where
    these differ, as after any mistake, the last one draws something else."""

    def __init__(self, before: queue.Queue[list[int]] | None, behind: queue.Queue[list[int]] | None) -> None:
        super().__init__(NUM_BLOCKS, 4, VOCABULARY)
        self._before = before
        self._behind = behind

    def launch(self, plan: IterationPlan) -> Done:
        received = self._before.get(timeout=PATIENCE_S) if self._before is not None and plan.computes else None
        is_last = self._behind is None
        result = self.execute(self.expand(plan if is_last else replace(plan, masks=None)))
        if not plan.computes:
            return Done(result)
        read = [hash(tuple(self._read(item))) for item in self.plans[-1].scheduled]
        handed = read if received is None else [a if a == b else a ^ b for a, b in zip(read, received, strict=True)]
        if self._behind is not None:
            self.hand_over(handed)
            return Done(replace(result, token_ids=()))
        if handed != read:
            result = replace(result, token_ids=tuple((each + 1) % VOCABULARY for each in result.token_ids))
        return Done(result)

    def hand_over(self, handed: list[int]) -> None:
        assert self._behind is not None
        self._behind.put(handed)

    def note_drawn(self, plan: IterationPlan, token_ids: object) -> None:
        """Only the last stage has drawn them."""
        if self._behind is None:
            super().note_drawn(plan, token_ids)

    def hear_drawn(self, rows: Int64Array, token_ids: Int64Array) -> None:
        self._last_drawn.update(zip(rows.tolist(), token_ids.tolist(), strict=True))


def play(seed: int, num_stages: int, num_lanes: int | None = None, *, drafts: bool = False) -> list[IterationPlan]:
    """Choices, beams, grammars, stops, aborts, swapping and recomputation: each token by the oracle of a request
    alone. num_lanes: batches in flight; None: one for each stage. Returns the plans."""
    chance = Random(seed)
    guesses = Speculation(3, 12, lambda: ToyDrafts(chance, 0.8, VOCABULARY, lambda sequence_id: None, None))
    queues: list[queue.Queue[list[int]] | None] = [None, *(queue.Queue() for _ in range(num_stages - 1)), None]
    stages = [ToyStage(queues[index], queues[index + 1]) for index in range(num_stages)]
    hear = [stage.hear_drawn for stage in stages[:-1]]  # a toy's middle stages know of ids, too
    with Scene(LateLaunch(stages[-1]), *stages[:-1], num_peers=1, note_drawn=hear) as scene:
        harness = Harness(
            NUM_BLOCKS,
            executor=scene.executor if num_stages > 1 else LateLaunch(stages[0]),
            preemption=SometimesSwap(0.5),
            num_host_blocks=12,
            masker=ToyMasker(VOCABULARY),
            num_lanes=num_lanes or num_stages,
            speculation=guesses if drafts else None,
        )
        for _ in range(30):
            request = add_random_request(harness, chance, seed)
            assert not harness.engine.failed.num_in_a_row
            if chance.random() < 0.1:
                harness.engine.requests.abort(request.request_id)
        while harness.engine.has_work:
            harness.step()
            assert not harness.engine.failed.num_in_a_row
        harness.check_nothing_left()
        for rank in range(1, num_stages):
            scene.wait_for(rank, Fact.PLANS_DONE, len(stages[-1].plans))
    for request_id, final in harness.finals.items():
        harness.check_against_oracle(request_id, complete=final.outcome is Outcome.FINISHED)
    assert len(harness.finals) >= 20
    assert scene.losses == []
    return stages[-1].plans


@pytest.mark.parametrize(("num_stages", "num_lanes"), [(2, 2), (3, 3), (2, 1)])
def test_drafts_in_stages_change_no_token(num_stages: int, num_lanes: int):
    """A draft that is wrong leaves another id than the last one with its row: no plan may take that for the last."""
    plans = play(0, num_stages, num_lanes, drafts=True)
    assert sum(plan.num_drafts for plan in plans) > 5


def test_without_overlap_one_batch_goes_through_all_stages():
    plans = play(0, 2, num_lanes=1)
    assert len(plans) < len(play(0, 2)), "batches of all requests are fewer"


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_stages_answer_as_the_oracle_does_whatever_requests_come(num_stages: int):
    for seed in range(2):
        play(seed, num_stages)


def a_plan_lost(patch: Patch) -> None:
    _lose(patch, MessageKind.PLAN)


def draws_lost(patch: Patch) -> None:
    _lose(patch, MessageKind.DRAWN)


def _lose(patch: Patch, lost: MessageKind) -> None:
    """The twentieth of this kind."""
    patch.setattr("tests.distributed.test_stages.PATIENCE_S", 0.5)
    write, numbers = RingWriter.write, iter(range(1, 1_000_000))

    def all_but_one(self: RingWriter, kind: MessageKind, payload: bytes = b"") -> None:
        if kind is not lost or next(numbers) != 20:
            write(self, kind, payload)

    patch.setattr(RingWriter, "write", all_but_one)


def a_plan_told_twice(patch: Patch) -> None:
    write, numbers = RingWriter.write, iter(range(1, 1_000_000))

    def one_twice(self: RingWriter, kind: MessageKind, payload: bytes = b"") -> None:
        write(self, kind, payload)
        if kind is MessageKind.PLAN and next(numbers) == 20:
            write(self, kind, payload)

    patch.setattr(RingWriter, "write", one_twice)


def a_batch_handed_over_twice(patch: Patch) -> None:
    hand_over, numbers = ToyStage.hand_over, iter(range(1, 1_000_000))

    def one_twice(self: ToyStage, handed: list[int]) -> None:
        hand_over(self, handed)
        if next(numbers) == 20:
            hand_over(self, handed)

    patch.setattr(ToyStage, "hand_over", one_twice)


def batches_handed_over_in_another_order(patch: Patch) -> None:
    hand_over, held, numbers = ToyStage.hand_over, list[list[int]](), iter(range(1, 1_000_000))

    def swapped(self: ToyStage, handed: list[int]) -> None:
        if next(numbers) == 20:
            held.append(handed)
            return
        hand_over(self, handed)
        if held:
            hand_over(self, held.pop())

    patch.setattr(ToyStage, "hand_over", swapped)


def draws_heard_before_the_plan_that_drew_them(patch: Patch) -> None:
    """Messages in another order: the first stage embeds what a sequence drew a step before."""
    hear = ToyStage.hear_drawn

    def late(self: ToyStage, rows: Int64Array, token_ids: Int64Array) -> None:
        before, self._held = getattr(self, "_held", None), (rows, token_ids)
        if before is not None:
            hear(self, *before)

    patch.setattr(ToyStage, "hear_drawn", late)


@pytest.mark.parametrize(
    "fault",
    [
        a_plan_lost,
        draws_lost,
        a_plan_told_twice,
        a_batch_handed_over_twice,
        batches_handed_over_in_another_order,
        draws_heard_before_the_plan_that_drew_them,
    ],
)
def test_a_fault_between_stages_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError, queue.Empty)):
        play(0, 3)


def test_what_fails_on_the_last_stage_alone_is_a_fault_of_that_plan():
    """The stages before it have handed over; the first one waits for no ids of it."""
    first = ToyStage(None, queue.Queue())

    class Failing:
        def launch(self, plan: IterationPlan) -> Done:
            return Done(IterationResult(()), fault=ValueError("out of memory"))

    with Scene(Failing(), first, num_peers=1, note_drawn=[first.hear_drawn]) as scene:
        harness = Harness(NUM_BLOCKS, executor=scene.executor, num_lanes=2)
        harness.add(harness.request((1, 2, 3), 4))
        harness.run()
        assert harness.finals["request-0"].outcome is Outcome.FAILED
        scene.wait_for(1, Fact.PLANS_DONE, 1)
        assert scene.losses == []


def test_masks_reach_their_plan_whatever_is_told_before_them():
    """Of two batches in flight the first one's masks are computed after the second one's plan was told."""
    waited: list[bytes] = []

    class Waiting:
        def launch(self, plan: IterationPlan) -> Done:
            if plan.masks is not None:
                waited.append(bytes(plan.masks.wait()))
            return Done()

    class Masks:
        def __init__(self, value: int) -> None:
            self.rows, self._bits = (0,), bytes([value, 0, 0, 0])

        def wait(self) -> memoryview:
            return memoryview(self._bits).cast("i", (1, 1))

    with Scene(LateLaunch(Waiting()), Waiting()) as scene:
        plans = [IterationPlan((), masks=Masks(value)) for value in (1, 2)]
        pending = [scene.executor.launch(plan) for plan in (plans[0], IterationPlan(()), plans[1])]
        for each in pending:
            each.wait()
        scene.wait_for(1, Fact.PLANS_DONE, 3)
    assert waited.count(b"\1\0\0\0") == waited.count(b"\2\0\0\0") == 2
