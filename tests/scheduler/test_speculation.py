from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from service.core.request import Request
from service.core.sampling_params import BeamParams, SamplingParams
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.swap_time import SwapTime
from service.scheduler import speculation
from service.scheduler.decode_batch import DecodeBatch
from service.scheduler.history import History
from service.scheduler.speculation import DraftChoice, Speculation, num_equal
from tests.engine.toy_grammar import ToyGrammar

PROMPT = (1, 2, 3)
NUM_DRAFTS = 4


class Sevens:
    """A Drafter that always drafts sevens."""

    def draft(self, sequence: Sequence, num_known: int, num: int) -> tuple[int, ...]:
        return (7,) * num


class Timed(RecoveryLedger):
    """predicted: number of decodes -> seconds."""

    def __init__(self, predicted: Callable[[int], float | None]) -> None:
        super().__init__(PreemptionCost(IterationTime(), SwapTime(), 16))
        self._predicted = predicted

    def decodes_s(self, num_decodes: int, num_read: int) -> float | None:
        assert num_read >= num_decodes
        return self._predicted(num_decodes)


class Lane:
    """Groups that decode in one batch, and the choice of those that draft. expected: drafts per group that will be
    right, as far as known; None: unknown."""

    def __init__(
        self,
        num_groups: int,
        predicted: Callable[[int], float | None] = lambda _: 1.0,
        most_rows: int = 64,
        expected: float | None = 0.5,
    ) -> None:
        self._expected = expected
        self.ledger = Timed(predicted)
        self.choice = DraftChoice(Speculation(NUM_DRAFTS, most_rows, Sevens), self.ledger)
        self.blocks = BlockManager(1000, 4, NoPrefixCache())
        self.batch = DecodeBatch(self.blocks, count(1), History())
        self.groups = [self.group(i, SamplingParams(100)) for i in range(num_groups)]
        for group in self.groups:
            self.start(group)
        self.batch.join(self.groups)

    def group(self, number: int, sampling: SamplingParams) -> SequenceGroup:
        group = SequenceGroup(Request(f"{number}", PROMPT, sampling, 0.0), number)
        for sequence in group.sequences:
            sequence.token_ids = [*PROMPT, 7]
            sequence.num_computed_tokens = 3
        return group

    def start(self, group: SequenceGroup) -> None:
        self.blocks.allocate(group.live[0].sequence_id, 4, [])
        self.batch.start(group)
        if self._expected is not None:
            self.choice._tracks[group.live[0].sequence_id] = speculation._Track(Sevens(), self._expected)

    def drafting(self, *, is_launched: bool = False) -> list[int]:
        """Indexes of the groups that draft."""
        waits = self.choice.must_wait(self.batch, self.groups, is_launched=is_launched)
        chosen = [i for i, group in enumerate(self.groups) if self.choice.of(group.live[0])]
        assert not (waits and chosen)
        assert waits <= is_launched
        assert all(group in self.batch for i, group in enumerate(self.groups) if i not in chosen and group.is_forked)
        return [-1] if waits else chosen

    def goes_on(self, number: int, *token_ids: int) -> None:
        sequence = self.groups[number].live[0]
        sequence.token_ids += token_ids
        sequence.num_computed_tokens += len(token_ids)
        if self.groups[number] not in self.batch:
            self.batch.join([self.groups[number]])


def test_who_drafts_leaves_the_batch_and_computes_as_many_as_there_is_room_for():
    lane = Lane(2)
    lane.groups[1].live[0].max_num_tokens = 7  # two more tokens can be cached, and one drawn behind them
    assert lane.drafting() == [0, 1]
    assert [lane.choice.of(group.live[0]) for group in lane.groups] == [(7,) * NUM_DRAFTS, (7, 7)]
    assert len(lane.batch) == 0
    assert set(lane.batch.unbatched) == {0, 1}


@pytest.mark.parametrize("token_id", [7, 9])
def test_of_whom_nothing_is_known_it_drafts_once_it_would_have_been_right(token_id: int):
    lane = Lane(1, lambda num: 1 + 0.01 * num, expected=None)
    waited = 0
    while lane.drafting() == [] and waited < 20:
        assert not lane.drafting(is_launched=True)
        lane.goes_on(0, token_id)
        waited += 1
    assert waited == (NUM_DRAFTS if token_id == 7 else 20)


def test_whose_drafts_are_wrong_drafts_no_more_until_it_would_have_been_right():
    lane = Lane(1, lambda num: 1 + 0.05 * num)
    rounds = 0
    while lane.drafting() == [0]:
        lane.goes_on(0, 9)
        rounds += 1
    assert 2 <= rounds <= 10
    lane.goes_on(0, 9)
    for _ in range(20):
        if lane.drafting() == [0]:
            return
        lane.goes_on(0, 7)
    raise AssertionError("nobody has noticed that the guesses are right now")


@pytest.mark.parametrize(
    ("predicted", "drafts"),
    [
        (lambda num: None, True),
        (lambda num: 1 + 0.1 * num, True),
        (lambda num: float(num), False),
        (lambda num: 1.0 if num == 1 else 1.99, False),
    ],
    ids=["nothing is known", "rows cost little", "each row costs as much", "one more token hardly pays"],
)
def test_drafts_must_pay_by_the_predicted_times(predicted: Callable[[int], float | None], drafts: bool):
    assert (Lane(1, predicted).drafting() == [0]) is drafts


def test_what_a_wait_for_the_ids_costs_is_counted_for_all_that_decode():
    def predicted(num: int) -> float:
        return 1 + 0.01 * num

    alone, among_others = Lane(1, predicted), Lane(20, predicted)
    for lane in (alone, among_others):
        lane.ledger.draft_wait_s = 0.2
        for group in lane.groups[1:]:
            lane.choice._tracks[group.live[0].sequence_id] = speculation._Track(Sevens(), 0.0)
    assert alone.drafting() == [0]
    assert among_others.drafting() == []
    among_others.ledger.draft_wait_s = 0.0
    assert among_others.drafting() == []  # one token more of 21 is not the gain that is wanted


def test_rows_are_no_more_than_there_may_be_and_go_to_those_who_gain_most():
    lane = Lane(3, most_rows=3 + NUM_DRAFTS + 2)
    for number, expected in enumerate((1.0, 3.0, 2.0)):
        lane.choice._tracks[lane.groups[number].live[0].sequence_id] = speculation._Track(Sevens(), expected)
    assert lane.drafting() == [1, 2]
    assert [len(lane.choice.of(group.live[0])) for group in lane.groups] == [0, NUM_DRAFTS, 2]


def test_nobody_is_looked_at_where_many_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speculation, "MOST_RUNNING", 2)
    assert Lane(2).drafting() == [0, 1]
    lane = Lane(3)
    assert lane.drafting() == []
    assert not lane.choice._tracks


def test_before_the_last_id_is_known_somebody_may_want_to_wait_for_it():
    lane = Lane(2)
    assert lane.drafting(is_launched=True) == [-1]
    assert lane.drafting() == [0, 1]
    dear = Lane(2, lambda num: float(num))
    assert dear.drafting(is_launched=True) == []


@pytest.mark.parametrize(
    ("sampling", "may"),
    [
        (SamplingParams(9), True),
        (SamplingParams(9, min_tokens=4, num_logprobs=2, bad_words=((5,),), min_p=0.1, logit_bias=((5, 1.0),)), True),
        (SamplingParams(9, n=2), False),
        (SamplingParams(9, beam=BeamParams(2), num_logprobs=4), False),
        (SamplingParams(9, repetition_penalty=1.1), False),
        (SamplingParams(9, frequency_penalty=0.1), False),
        (SamplingParams(9, bad_words=((5, 6),)), False),
    ],
)
def test_who_may_draft(sampling: SamplingParams, may: bool):
    request = Request("a", PROMPT, sampling, 0.0)
    assert request.may_draft is may
    assert not replace(request, grammar=ToyGrammar(3, 1)).may_draft
    lane = Lane(0)
    group = lane.group(0, sampling)
    group.is_forked = True
    lane.groups = [group]
    lane.start(group)
    waits = lane.choice.must_wait(lane.batch, lane.groups, is_launched=False)
    assert (waits, bool(lane.choice.of(group.live[0]))) == (False, may)


def test_what_has_ended_is_forgotten():
    lane = Lane(1)
    lane.drafting()
    lane.choice.forget(lane.groups[0])
    assert not lane.choice._tracks


def test_equal_ids_count_up_to_the_first_that_is_not():
    assert [num_equal((1, 2, 3), came) for came in ((1, 2, 3, 4), (1, 2), (1, 9, 3), (), (9,))] == [3, 2, 1, 0, 0]


def test_each_choice_is_a_row_beside_the_drafts():
    lane = Lane(1, most_rows=6)
    choices = lane.group(10, SamplingParams(100, n=3))
    choices.is_forked = True
    lane.start(choices)
    assert not lane.choice.must_wait(lane.batch, [*lane.groups, choices], is_launched=False)
    assert len(lane.choice.of(lane.groups[0].live[0])) == 6 - 1 - 3
