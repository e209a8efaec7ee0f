from __future__ import annotations

import pytest

from loadtest.parity.comparison import ROUNDING, Answer, Judged, compare, first_difference, num_equal

BF16 = ROUNDING["bfloat16"]
ONE = Answer((5, 6, 7), (-0.1, -0.2, -0.3))


def judged(theirs: Answer, expected: tuple[float, ...]) -> Judged:
    return Judged(theirs, expected)


def test_equal_tokens_are_equal_and_logprobs_are_compared():
    found = compare([ONE], [judged(Answer((5, 6, 7), (-0.1, -0.25, -0.3)), (-0.1, -0.25, -0.3))], BF16)
    assert (found.num_answers, found.num_equal, found.differences) == (1, 1, ())
    assert found.logprob_error == pytest.approx(0.05)
    assert found.mean_error == pytest.approx(0.05 / 3)


@pytest.mark.parametrize(("of_ours", "is_near_tie"), [(-0.30, True), (-2.5, False)])
def test_a_difference_is_a_near_tie_if_rounding_may_decide(of_ours: float, is_near_tie: bool):
    """The logprob of our token is off by 0.1 and 0 elsewhere; theirs is the likelier by 0.05, or by 2.25."""
    theirs = Answer((5, 8, 9), (-0.1, -0.25, -0.01))
    ours = Answer((5, 6, 7), (-0.1, of_ours - 0.1, -0.3))
    (difference,) = compare([ours], [judged(theirs, (-0.1, of_ours))], BF16).differences
    assert (difference.prompt, difference.place, difference.ours, difference.theirs) == (0, 1, 6, 8)
    assert difference.gap == pytest.approx(-0.25 - of_ours)
    assert difference.is_near_tie is is_near_tie


def test_a_prompt_that_is_wrong_does_not_excuse_itself():
    """Its logprobs are off by 0.4, by which 0.3 would be a near-tie; those of the other prompt by 0.05."""
    wrong = Answer((5, 6), (-0.1, -0.8)), judged(Answer((5, 8), (-0.1, -0.1)), (-0.1, -0.4))
    right = ONE, judged(ONE, (-0.1, -0.25, -0.3))
    assert compare([wrong[0]], [wrong[1]], BF16).num_near_ties == 1
    both = compare([wrong[0], right[0]], [wrong[1], right[1]], BF16)
    assert (len(both.differences), both.num_near_ties, both.is_explained) == (1, 0, False)


def test_a_model_that_is_wrong_everywhere_is_not_excused():
    """Logprobs are off by 3 nats in all answers, the tokens 1.5 nats apart."""
    theirs = Answer((5, 8), (-0.1, -0.1))
    ours = Answer((5, 6), (-0.1, -4.6))
    found = compare([ours] * 3, [judged(theirs, (-0.1, -1.6))] * 3, BF16)
    assert (found.num_near_ties, found.is_rounding, found.is_explained) == (0, False, False)


def test_equal_tokens_with_other_logprobs_are_not_the_same_model():
    found = compare([ONE], [judged(ONE, (-0.9, -0.2, -0.3))], BF16)
    assert (found.num_equal, found.is_rounding, found.is_explained) == (1, False, False)


def test_in_fp32_what_bf16_may_do_is_a_fault():
    theirs, ours = Answer((5, 8), (-0.1, -0.25)), Answer((5, 6), (-0.1, -0.4))
    oracle = judged(theirs, (-0.1, -0.30))
    assert compare([ours], [oracle], BF16).is_explained
    assert not compare([ours], [oracle], ROUNDING["float32"]).is_explained


def test_what_comes_behind_a_difference_says_nothing():
    """The texts are no longer the same."""
    ours, theirs = Answer((5, 6, 7), (-0.1, -0.2, -9.0)), Answer((5, 8, 7), (-0.1, -0.2, -0.3))
    assert compare([ours], [judged(theirs, (-0.1, -0.2))], BF16).logprob_error == 0.0


def test_answers_of_different_lengths_are_not_compared():
    with pytest.raises(ValueError, match="2 tokens is compared with one of 3"):
        first_difference((5, 6), (5, 6, 7))


def test_answers_that_are_the_same_on_both_sides_are_counted():
    assert num_equal([(1, 2), (3,)], [(1, 2), (4,)]) == 1
