"""Where in a regex a text stands: the subset construction, state by state as texts reach them."""

from __future__ import annotations

from collections.abc import Callable

from service.structured.places import Places
from service.structured.regex_syntax import CharAutomaton, char_automaton, step

RegexState = frozenset[int]


class RegexStates:
    """Sets of states of the automaton. ends_at_match: a text is followed only until a beginning of it matches."""

    def __init__(self, automaton: CharAutomaton, *, ends_at_match: bool) -> None:
        self._automaton = automaton
        self._last = len(automaton.moves) - 1
        self._ends_at_match = ends_at_match
        self.first = self._important(automaton.closure({0}))

    def after(self, state: RegexState, char: str) -> RegexState | None:
        reached = step(self._automaton, state, char)
        if not reached or (self._ends_at_match and self._last in reached):
            return None
        return self._important(reached)

    def size(self, state: RegexState) -> int:
        return len(state)

    def _important(self, states: set[int]) -> RegexState:
        """Of them, those that tell what may follow: the "important states" of Aho, Sethi and Ullman (1986)."""
        return frozenset(state for state in states if self._automaton.moves[state] or state == self._last)


def regex_places(
    pattern: str, token_bytes: Callable[[int], bytes], *, ends_at_match: bool = False
) -> Places[RegexState] | None:
    """None: texts under this pattern cannot be followed. Any thread."""
    automaton = char_automaton(pattern)
    return None if automaton is None else Places(RegexStates(automaton, ends_at_match=ends_at_match), token_bytes)
