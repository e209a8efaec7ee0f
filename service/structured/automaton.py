"""A nondeterministic automaton, built part by part (Thompson 1968), and what sets of its states reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Label = TypeVar("Label")

_MAX_STATES = 4_000


class TooLarge(Exception):
    """The automaton would have more states than are worth following."""


class Automaton(Generic[Label]):
    """States are numbers from 0 on. moves: of each state, what leads where. free_moves: where each leads by nothing."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[Label, int]]] = []
        self.free_moves: list[list[int]] = []

    def add_state(self) -> int:
        if len(self.moves) == _MAX_STATES:
            raise TooLarge
        self.moves.append([])
        self.free_moves.append([])
        return len(self.moves) - 1

    def closure(self, states: Iterable[int]) -> set[int]:
        """With the states that are reached by nothing."""
        reached = set(states)
        waiting = list(reached)
        while waiting:
            for state in self.free_moves[waiting.pop()]:
                if state not in reached:
                    reached.add(state)
                    waiting.append(state)
        return reached


Part = Callable[[Automaton[Label], int, int], None]
"""Adds what leads from one state to another. It may be added more than once."""


def one(label: Label) -> Part[Label]:
    def add(automaton: Automaton[Label], start: int, end: int) -> None:
        automaton.moves[start].append((label, end))

    return add


def one_after_another(parts: Sequence[Part[Label]]) -> Part[Label]:
    def add(automaton: Automaton[Label], start: int, end: int) -> None:
        for part in parts:
            after = automaton.add_state()
            part(automaton, start, after)
            start = after
        automaton.free_moves[start].append(end)

    return add


def any_of(parts: Sequence[Part[Label]]) -> Part[Label]:
    def add(automaton: Automaton[Label], start: int, end: int) -> None:
        for part in parts:
            first = automaton.add_state()
            automaton.free_moves[start].append(first)
            part(automaton, first, end)

    return add


def repetition(part: Part[Label], least: int, most: int | None) -> Part[Label]:
    """most None: without end."""

    def add(automaton: Automaton[Label], start: int, end: int) -> None:
        at = automaton.add_state()
        automaton.free_moves[start].append(at)
        for count in range(max(least, 1) if most is None else most):
            if count >= least:
                automaton.free_moves[at].append(end)
            before, at = at, automaton.add_state()
            part(automaton, before, at)
        if most is None:
            automaton.free_moves[at].append(before)  # the last one again
        automaton.free_moves[at].append(end)

    return add
