"""Where in a Lark grammar a text stands: its row of Earley's parser, and where in the terminals that have begun.

As llguidance reads a text: all terminals that may come next are followed at once, as far as any of them goes; then
those that match there are what was read. A terminal that may stand anywhere between others leaves the row as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from service.structured.earley_rows import EarleyRows
from service.structured.lark_automata import Lark, read_lark
from service.structured.places import Places
from service.structured.regex_syntax import step


class LarkState(NamedTuple):
    """chars: states of the terminals that have begun; if none has, of those that may begin.

    has_begun: whether one has. It keeps apart two states of equal chars, in one of which alone a text may end.
    """

    row: int
    has_begun: bool
    chars: frozenset[int]


class LarkStates:
    def __init__(self, lark: Lark) -> None:
        self._lark = lark
        self._rows = EarleyRows(lark)
        self._terminal_of = {last: number for number, (_, last) in enumerate(lark.terminal_bounds)}
        self._starts: dict[int, LarkState] = {}
        first = self._rows.first
        self.first = None if first is None else self._start(first)

    def after(self, state: LarkState, char: str) -> LarkState | None:
        reached = step(self._lark.chars, state.chars, char)
        if reached is None:
            return None
        if not reached:
            following = self._end_terminals(state)
            if following is None:
                return None
            state = following
            reached = step(self._lark.chars, state.chars, char)
            if not reached:
                return None
        return self._settled(LarkState(state.row, True, self._important(reached)))

    def size(self, state: LarkState) -> int:
        return 1 + len(state.chars)

    def _settled(self, state: LarkState) -> LarkState | None:
        """Where no terminal can go on, they have ended."""
        moves = self._lark.chars.moves
        return state if any(moves[each] for each in state.chars) else self._end_terminals(state)

    def _end_terminals(self, state: LarkState) -> LarkState | None:
        ended = {self._terminal_of[each] for each in state.chars if each in self._terminal_of}
        if ended == {self._lark.ignored}:
            return self._start(state.row)
        if not ended or self._lark.ignored in ended:
            return None
        row = self._rows.after(state.row, sorted(ended))
        return None if row is None else self._start(row)

    def _start(self, row: int) -> LarkState:
        """Before the next terminal. Nothing is ignored at the beginning of a text."""
        if row not in self._starts:
            terminals = self._rows.terminals(row)
            if self._lark.ignored is not None and row != self._rows.first:
                terminals |= {self._lark.ignored}
            bounds = self._lark.terminal_bounds
            chars = self._lark.chars.closure(bounds[number][0] for number in terminals)
            self._starts[row] = LarkState(row, False, self._important(chars))
        return self._starts[row]

    def _important(self, chars: Iterable[int]) -> frozenset[int]:
        """Of them, those that tell what may follow; see `RegexStates`."""
        moves = self._lark.chars.moves
        return frozenset(each for each in chars if moves[each] or each in self._terminal_of)


def lark_places(grammar: str, token_bytes: Callable[[int], bytes]) -> Places[LarkState] | None:
    """None: texts under this grammar cannot be followed. Any thread."""
    lark = read_lark(grammar)
    return None if lark is None else Places(LarkStates(lark), token_bytes)
