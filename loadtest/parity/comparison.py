"""Answers of two sides to the same prompts, token by token: what is equal, and whether a difference is a near-tie.

Both sides compute the same numbers but for rounding as long as the tokens before are the same. So logprobs are compared
up to the first difference, and there it is seen whether the two tokens were so close that rounding may decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NEAR_TIE = 2.0
"""Two logprobs that are off by as much as any is may change places if they are no farther apart than twice that."""


class Rounding(NamedTuple):
    """What a dtype may put a logprob off by, in nats. least: so much may be rounding even if less was seen, for few
    prompts show little of it. most: more is a fault, however often it is seen."""

    least: float
    most: float


ROUNDING = {"float32": Rounding(1e-4, 0.01), "bfloat16": Rounding(0.02, 0.5)}


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
    between the sides, before a difference of tokens; mean_error: the mean. is_rounding: that may be rounding."""

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
        """By rounding alone."""
        return self.is_rounding and self.num_near_ties == len(self.differences)


@dataclass(frozen=True, slots=True)
class Searches:
    """Beam searches. equal: of each, how many of its beams are the same. ahead: of each that differs, by how many nats
    the oracle's best beam is better than ours, by the oracle's own logprobs of all its tokens."""

    width: int
    equal: tuple[int, ...]
    ahead: dict[int, float]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Where they differ first; None if they are equal. Raises ValueError if one of them ends before that."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    if len(ours) != len(theirs):
        raise ValueError(f"an answer of {len(ours)} tokens is compared with one of {len(theirs)}")
    return None


def compare(answers: Sequence[Answer], judged: Sequence[Judged], rounding: Rounding) -> Comparison:
    """Ours with the oracle's, by prompt. Every answer has as many tokens as the oracle's. A difference is judged by
    what the logprobs of the other prompts are off by: who alone is wrong does not excuse itself."""
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
    """How many are the same on both sides."""
    return sum(tuple(one) == tuple(other) for one, other in zip(some, others, strict=True))


def _distance(one: float, other: float) -> float:
    return abs(one - other)
