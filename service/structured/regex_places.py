"""Where in a regex a text stands: texts at one place may go on alike, so they share a mask.

The subset construction, state by state as texts reach them. Places are numbers; None is "not known", and stays so.
"""

from __future__ import annotations

from collections.abc import Callable

from service.structured.regex_syntax import CharAutomaton, char_automaton

MAX_BYTES = 4 * 2**20
"""About what one takes at most, its automaton included: measured, with all of the limits below reached."""
_MAX_STATES_IN_ALL = 10_000
_MAX_MOVES = 6_000
_MAX_SUBSET = 100
"""States of the automaton at one place. Moving takes some 0.2 us for each and character, once a place and token."""

Place = int | None


class RegexPlaces:
    """Shared by all texts under one regex; engine thread only, once it is made.

    token_bytes: what a token adds to the text. ends_at_match: nothing is known of texts of which a beginning matches.
    """

    def __init__(
        self, automaton: CharAutomaton, token_bytes: Callable[[int], bytes], *, ends_at_match: bool = False
    ) -> None:
        self._automaton = automaton
        self._token_bytes = token_bytes
        self._last = len(automaton.moves) - 1 if ends_at_match else None
        self._subsets: list[tuple[frozenset[int], bytes]] = []
        self._numbers: dict[tuple[frozenset[int], bytes], int] = {}
        self._num_states = 0
        self._moves: dict[tuple[int, int], Place] = {}
        self.first = self._number(self._closure({0}), b"")

    def after(self, place: Place, token_id: int) -> Place:
        """The place after another token."""
        if place is None:
            return None
        key = (place, token_id)
        if key not in self._moves:
            if len(self._moves) == _MAX_MOVES:
                self._moves.clear()
            self._moves[key] = self._move(place, token_id)
        return self._moves[key]

    def _move(self, place: int, token_id: int) -> Place:
        states, begun = self._subsets[place]
        text, begun = _whole_characters(begun + self._token_bytes(token_id))
        if text is None:
            return None
        for char in text:
            moved = self._step(states, char)
            if not moved or self._last in moved:
                return None
            states = moved
        return self._number(states, begun)

    def _step(self, states: frozenset[int], char: str) -> frozenset[int] | None:
        reached = set[int]()
        for state in states:
            for chars, end in self._automaton.moves[state]:
                has = chars.has(char)
                if has is None:
                    return None
                if has:
                    reached.add(end)
        return self._closure(reached)

    def _closure(self, states: set[int]) -> frozenset[int]:
        """With those that are reached without a character; of all, those that tell what may follow."""
        waiting = list(states)
        while waiting:
            for state in self._automaton.free_moves[waiting.pop()]:
                if state not in states:
                    states.add(state)
                    waiting.append(state)
        last = len(self._automaton.moves) - 1
        return frozenset(state for state in states if self._automaton.moves[state] or state == last)

    def _number(self, states: frozenset[int], begun: bytes) -> Place:
        known = self._numbers.get((states, begun))
        if known is not None:
            return known
        if len(states) > min(_MAX_SUBSET, _MAX_STATES_IN_ALL - self._num_states):
            return None
        self._num_states += len(states)
        self._subsets.append((states, begun))
        self._numbers[states, begun] = len(self._subsets) - 1
        return len(self._subsets) - 1


def regex_places(
    pattern: str, token_bytes: Callable[[int], bytes], *, ends_at_match: bool = False
) -> RegexPlaces | None:
    """None: texts under this pattern cannot be followed. Any thread."""
    automaton = char_automaton(pattern)
    return None if automaton is None else RegexPlaces(automaton, token_bytes, ends_at_match=ends_at_match)


def _whole_characters(data: bytes) -> tuple[str | None, bytes]:
    """The text, and the bytes of a character that has only begun; None if it is no UTF-8."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None, b""
        return data[: error.start].decode(), data[error.start :]
