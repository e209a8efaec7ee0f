from __future__ import annotations

import random

import pytest

from service.core.sequence import Sequence
from service.scheduler import ngram_drafts
from service.scheduler.ngram_drafts import LONGEST, SHORTEST, NgramDrafts
from tests.examples import examples


def sequence_of(token_ids: list[int]) -> Sequence:
    return Sequence(0, 0, 0, token_ids, 1, 10_000)


def by_the_definition(token_ids: list[int], num: int) -> tuple[int, ...]:
    for length in range(LONGEST, SHORTEST - 1, -1):
        for behind in range(len(token_ids) - 1, length - 1, -1):
            if token_ids[behind - length : behind] == token_ids[-length:]:
                again = token_ids[behind:] * num
                return tuple(again[:num])
    return ()


@pytest.mark.parametrize("seed", range(examples(6)))
def test_a_draft_is_what_stood_behind_the_last_place_of_the_last_tokens(seed: int):
    chance = random.Random(seed)
    # Ids that are no characters by themselves (surrogates), and beyond 16 bits.
    alphabet = chance.sample([0, 1, 9, 255, 256, 0xD800, 0xDFFF, 65_536, 262_143], chance.randint(2, 5))
    drafter, sequence = NgramDrafts(), sequence_of([])
    while len(sequence.token_ids) < 60:
        sequence.token_ids += [chance.choice(alphabet) for _ in range(chance.randint(1, 3))]
        known = sequence.token_ids.copy()
        sequence.token_ids.append(-2)  # pending
        num = chance.randint(1, 5)
        assert drafter.draft(sequence, len(known), num) == by_the_definition(known, num)
        sequence.token_ids.pop()


def test_text_that_repeats_itself_goes_on_as_it_does():
    assert NgramDrafts().draft(sequence_of([7, 1, 2, 1, 2, 1, 2]), 7, 5) == (1, 2, 1, 2, 1)
    assert NgramDrafts().draft(sequence_of([1, 2, 3, 4, 5]), 5, 4) == ()
    assert NgramDrafts().draft(sequence_of([1]), 1, 4) == ()


def test_only_the_last_tokens_are_looked_at_however_many_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ngram_drafts, "WINDOW", 8)
    drafter, sequence = NgramDrafts(), sequence_of([1, 2, 3, *range(10, 18), 1, 2])
    assert drafter.draft(sequence, len(sequence.token_ids), 2) == ()
    for token_id in range(100, 200):
        sequence.token_ids.append(token_id)
        drafter.draft(sequence, len(sequence.token_ids), 2)
        assert len(drafter._text) <= 2 * ngram_drafts.WINDOW
    sequence.token_ids += [198, 199]
    assert drafter.draft(sequence, len(sequence.token_ids), 2) == (198, 199)
