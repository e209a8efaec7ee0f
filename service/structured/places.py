"""The places that texts under one grammar can reach. Texts at one place may continue alike, so they share a mask.

A place is the number of a state that a text has led to. None means "not known", and whatever follows is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

MAX_BYTES = 4 * 2**20
"""About the most that the places of one grammar take, states included; measured with all limits below reached."""
_MAX_SIZE_IN_ALL = 10_000
_MAX_MOVES = 6_000
_MAX_SIZE = 100
"""Size of one state. A move takes some 0.2 us for each unit of size and character, once a place and token."""

Place = int | None
State = TypeVar("State", bound=Hashable)


class States(Protocol[State]):
    """What texts may go on alike: those that have led to one state."""

    @property
    def first(self) -> State | None: ...

    def after(self, state: State, char: str) -> State | None:
        """None: not known."""
        ...

    def size(self, state: State) -> int:
        """How much it holds, for the limits."""
        ...


class Places(Generic[State]):
    """Shared by all texts under one grammar; engine thread only, once it is made.

    token_bytes: what a token adds to the text.
    """

    def __init__(self, states: States[State], token_bytes: Callable[[int], bytes]) -> None:
        self._states = states
        self._token_bytes = token_bytes
        self._known: list[tuple[State, bytes]] = []
        self._numbers: dict[tuple[State, bytes], int] = {}
        self._size_in_all = 0
        self._moves: dict[tuple[int, int], Place] = {}
        first = states.first
        self.first = None if first is None else self._number(first, b"")

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
        state, begun = self._known[place]
        text, begun = _whole_characters(begun + self._token_bytes(token_id))
        if text is None:
            return None
        for char in text:
            after = self._states.after(state, char)
            if after is None or self._states.size(after) > _MAX_SIZE:
                return None
            state = after
        return self._number(state, begun)

    def _number(self, state: State, begun: bytes) -> Place:
        known = self._numbers.get((state, begun))
        if known is not None:
            return known
        size = self._states.size(state)
        if size > min(_MAX_SIZE, _MAX_SIZE_IN_ALL - self._size_in_all):
            return None
        self._size_in_all += size
        self._known.append((state, begun))
        self._numbers[state, begun] = len(self._known) - 1
        return len(self._known) - 1


AnyPlaces = Places[Any]


def _whole_characters(data: bytes) -> tuple[str | None, bytes]:
    """The text, and the bytes of a character that has only begun; None if it is no UTF-8."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None, b""
        return data[: error.start].decode(), data[error.start :]
