from __future__ import annotations

import pytest

from loadtest.parity.comparison import Answer, Judged, compare, first_difference, num_equal

ONE = Answer((5, 6, 7), (-0.1, -0.2, -0.3))


def judged(theirs: Answer, expected: tuple[float, ...]) -> Judged:
    return Judged(theirs, expected)


def test_equal_tokens_are_equal_and_logprobs_are_compared():
    found = compare([ONE], [judged(Answer((5, 6, 7), (-0.1, -0.25, -0.3)), (-0.1, -0.25, -0.3))])
    assert (found.num_answers, found.num_equal, found.differences) == (1, 1, ())
    assert found.logprob_error == pytest.approx(0.05)
    assert found.mean_error == pytest.approx(0.05 / 3)


@pytest.mark.parametrize(("of_ours", "is_near_tie"), [(-0.30, True), (-2.5, False)])
def test_a_difference_is_a_near_tie_if_rounding_may_decide(of_ours: float, is_near_tie: bool):
    """The logprob of our token is off by 0.1 and 0 elsewhere; theirs is the likelier by 0.05, or by 2.25."""
    theirs = Answer((5, 8, 9), (-0.1, -0.25, -0.01))
    ours = Answer((5, 6, 7), (-0.1, of_ours - 0.1, -0.3))
    (difference,) = compare([ours], [judged(theirs, (-0.1, of_ours))]).differences
    assert (difference.prompt, difference.place, difference.ours, difference.theirs) == (0, 1, 6, 8)
    assert difference.gap == pytest.approx(-0.25 - of_ours)
    assert difference.is_near_tie is is_near_tie


def test_what_comes_behind_a_difference_says_nothing():
    """The texts are no longer the same."""
    ours, theirs = Answer((5, 6, 7), (-0.1, -0.2, -9.0)), Answer((5, 8, 7), (-0.1, -0.2, -0.3))
    assert compare([ours], [judged(theirs, (-0.1, -0.2))]).logprob_error == 0.0


def test_answers_of_different_lengths_are_not_compared():
    with pytest.raises(ValueError, match="2 tokens is compared with one of 3"):
        first_difference((5, 6), (5, 6, 7))


def test_answers_that_are_the_same_on_both_sides_are_counted():
    assert num_equal([(1, 2), (3,)], [(1, 2), (4,)]) == 1
