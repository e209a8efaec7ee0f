"""Answers of two sides to the same prompts, token by token: what is equal, and whether a difference is a near-tie.

Both sides compute the same numbers but for rounding as long as the tokens before are the same. So logprobs are compared
up to the first difference, and there it is seen whether the two tokens were so close that rounding may decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

NEAR_TIE = 2.0
"""Two logprobs that are off by as much as any is may change places if they are no farther apart than twice that."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Greedy: the tokens, and the logprob of each."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the oracle says of an answer. theirs: its own. expected: of each token that both have, and of the first that
    is another, the oracle's logprob."""

    theirs: Answer
    expected: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first of an answer: at token `place`, counted from 0, they have `theirs` and we `ours`. gap: by how much the
    oracle's logprob of theirs is the higher."""

    prompt: int
    place: int
    ours: int
    theirs: int
    gap: float
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """num_equal: answers without a difference, of num_answers. logprob_error: the largest difference of a logprob
    between the sides, before a difference of tokens; mean_error: the mean."""

    num_answers: int
    num_equal: int
    logprob_error: float
    mean_error: float
    differences: tuple[Difference, ...]

    @property
    def num_near_ties(self) -> int:
        return sum(difference.is_near_tie for difference in self.differences)


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Where they differ first; None if they are equal. Raises ValueError if one of them ends before that."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    if len(ours) != len(theirs):
        raise ValueError(f"an answer of {len(ours)} tokens is compared with one of {len(theirs)}")
    return None


def compare(answers: Sequence[Answer], judged: Sequence[Judged]) -> Comparison:
    """Ours with the oracle's, by prompt. Every answer has as many tokens as the oracle's."""
    errors: list[float] = []
    places = []
    for answer, oracle in zip(answers, judged, strict=True):
        place = first_difference(answer.token_ids, oracle.theirs.token_ids)
        places.append(place)
        errors += map(_distance, answer.logprobs[: _num_judged(answer, place)], oracle.expected)
    largest = max(errors, default=0.0)
    differences = []
    for prompt, (answer, oracle, place) in enumerate(zip(answers, judged, places, strict=True)):
        if place is not None:
            gap = oracle.theirs.logprobs[place] - oracle.expected[place]
            tokens = answer.token_ids[place], oracle.theirs.token_ids[place]
            differences.append(Difference(prompt, place, *tokens, gap, gap <= NEAR_TIE * largest))
    mean = sum(errors) / len(errors) if errors else 0.0
    return Comparison(len(answers), len(answers) - len(differences), largest, mean, tuple(differences))


def num_equal(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> int:
    """How many are the same on both sides."""
    return sum(tuple(one) == tuple(other) for one, other in zip(some, others, strict=True))


def _num_judged(answer: Answer, place: int | None) -> int:
    return len(answer.logprobs) if place is None else place + 1


def _distance(one: float, other: float) -> float:
    return abs(one - other)
