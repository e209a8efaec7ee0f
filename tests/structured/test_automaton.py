from __future__ import annotations

import pytest

from service.structured.automaton import Automaton, Part, TooLarge, any_of, one, one_after_another, repetition


def words(part: Part[str], longest: int) -> set[str]:
    """The texts of up to so many letters that lead from the part's first state to its last."""
    automaton = Automaton[str]()
    part(automaton, automaton.add_state(), automaton.add_state())
    found, reached = set(), {"": automaton.closure({0})}
    for _ in range(longest + 1):
        found |= {text for text, states in reached.items() if 1 in states}
        longer: dict[str, set[int]] = {}
        for text, states in reached.items():
            for state in states:
                for letter, end in automaton.moves[state]:
                    longer.setdefault(text + letter, set()).update(automaton.closure({end}))
        reached = longer
    return found


A, B = one("a"), one("b")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (one_after_another([]), {""}),
        (one_after_another([A, B, A]), {"aba"}),
        (any_of([A, one_after_another([A, B]), one_after_another([])]), {"", "a", "ab"}),
        (any_of([]), set()),
        (repetition(A, 0, None), {"", "a", "aa", "aaa"}),
        (repetition(A, 2, None), {"aa", "aaa"}),
        (repetition(A, 1, 2), {"a", "aa"}),
        (repetition(A, 0, 0), {""}),
        (repetition(repetition(any_of([A, one_after_another([])]), 0, None), 1, None), {"", "a", "aa", "aaa"}),
        (one_after_another([repetition(A, 0, 1), B]), {"b", "ab"}),
    ],
)
def test_parts(part: Part[str], expected: set[str]) -> None:
    assert words(part, 3) == expected


def test_it_does_not_grow_without_end() -> None:
    with pytest.raises(TooLarge):
        words(repetition(repetition(A, 100, 100), 100, 100), 0)
