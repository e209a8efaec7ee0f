"""Compares two sides' answers to the same prompts, token by token: what is equal, and which differences are near-ties.

As long as the previous tokens are the same, both sides compute the same numbers up to rounding. So logprobs are
compared up to the first difference, where it is checked whether rounding may decide between the two tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NEAR_TIE = 2.0
"""If logprobs are off by at most e, rounding can swap two tokens whose logprobs differ by up to NEAR_TIE * e."""


class Rounding(NamedTuple):
    """How far a dtype's rounding may put a logprob off, in nats. least: always taken for rounding, even if the largest
    error seen is smaller, since few prompts show little of it. most: anything more is a fault."""

    least: float
    most: float


ROUNDING = {"float32": Rounding(1e-4, 0.01), "bfloat16": Rounding(0.02, 0.5)}


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: its tokens and the logprob of each."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """The oracle's judgement of an answer. theirs: its own answer. expected: its logprobs of our tokens, up to and
    including the first that differs."""

    theirs: Answer
    expected: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of an answer: at token `place`, from 0, the oracle has `theirs` and we have `ours`. gap: the
    oracle's logprob of theirs minus that of ours, in nats."""

    prompt: int
    place: int
    ours: int
    theirs: int
    gap: float
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """num_equal: answers without a difference, of num_answers. logprob_error, mean_error: largest and mean difference
    of logprobs, up to the first differing token. is_rounding: whether the largest may be rounding."""

    num_answers: int
    num_equal: int
    logprob_error: float
    mean_error: float
    is_rounding: bool
    differences: tuple[Difference, ...]

    @property
    def num_near_ties(self) -> int:
        return sum(difference.is_near_tie for difference in self.differences)

    @property
    def is_explained(self) -> bool:
        """Whether rounding alone explains all differences."""
        return self.is_rounding and self.num_near_ties == len(self.differences)


@dataclass(frozen=True, slots=True)
class Searches:
    """Beam searches. equal: per search, how many beams are the same. ahead: per search that differs, by how many nats
    the oracle's best beam beats ours, both scored with the oracle's logprobs."""

    width: int
    equal: tuple[int, ...]
    ahead: dict[int, float]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first difference; None if they are equal. Raises ValueError if one is the other's beginning."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    if len(ours) != len(theirs):
        raise ValueError(f"an answer of {len(ours)} tokens is compared with one of {len(theirs)}")
    return None


def compare(answers: Sequence[Answer], judged: Sequence[Judged], rounding: Rounding) -> Comparison:
    """Compare our answers with the oracle's, by prompt. Both must have the same number of tokens. A difference is
    judged by the logprob errors of the other prompts, so that an answer cannot excuse its own fault."""
    errors = []
    differences = []
    for answer, oracle in zip(answers, judged, strict=True):
        place = first_difference(answer.token_ids, oracle.theirs.token_ids)
        num_judged = len(answer.logprobs) if place is None else place + 1
        errors.append([*map(_distance, answer.logprobs[:num_judged], oracle.expected)])
        if place is not None:
            gap = oracle.theirs.logprobs[place] - oracle.expected[place]
            tokens = answer.token_ids[place], oracle.theirs.token_ids[place]
            differences.append((len(errors) - 1, place, *tokens, gap))
    largest = [max(of_one, default=0.0) for of_one in errors]

    def is_near_tie(prompt: int, gap: float) -> bool:
        of_others = max(largest[:prompt] + largest[prompt + 1 :], default=largest[prompt])
        return gap <= NEAR_TIE * min(max(of_others, rounding.least), rounding.most)

    every = [error for of_one in errors for error in of_one]
    return Comparison(
        num_answers=len(answers),
        num_equal=len(answers) - len(differences),
        logprob_error=max(largest, default=0.0),
        mean_error=sum(every) / len(every) if every else 0.0,
        is_rounding=max(largest, default=0.0) <= rounding.most,
        differences=tuple(Difference(*each, is_near_tie(each[0], each[-1])) for each in differences),
    )


def num_equal(some: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> int:
    """How many answers are the same on both sides."""
    return sum(tuple(one) == tuple(other) for one, other in zip(some, others, strict=True))


def _distance(one: float, other: float) -> float:
    return abs(one - other)
