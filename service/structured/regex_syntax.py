"""A regex's text -> a nondeterministic automaton of characters (Thompson 1968), or None where its meaning is not plain.

Only what every dialect reads alike: characters, sets of them, `.`, groups, `|`, greedy repetition, one `^` and one `$`
around the whole. Of `\\d`, `\\w` and `\\s` only the ASCII members are known; Unicode's versions differ in the others.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from service.structured.automaton import Automaton, Part, TooLarge, any_of, one, one_after_another, repetition

_MAX_DEPTH = 40
_MAX_REPEAT = 1_000
_KINDS = {
    "d": frozenset(string.digits),
    "w": frozenset(string.digits + string.ascii_letters + "_"),
    "s": frozenset("\t\n\v\f\r "),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
_ESCAPABLE = frozenset(string.punctuation) - frozenset("<>")
_SPECIAL = frozenset("\\^$.|?*+()[]{}")
_DOUBLED = frozenset("&-~")
"""Twice in a set, they are operators of some dialects."""


@dataclass(frozen=True, slots=True)
class CharSet:
    """ranges: first and last character of each. kinds: `d`, `w`, `s`, or in capitals what is none of them."""

    ranges: tuple[tuple[str, str], ...]
    kinds: frozenset[str] = frozenset()
    negated: bool = False

    def has(self, char: str) -> bool | None:
        """None: it depends on the version of Unicode."""
        if any(first <= char <= last for first, last in self.ranges):
            return not self.negated
        if not self.kinds:
            return self.negated
        if not char.isascii():
            return None
        return self.negated != any((char in _KINDS[kind.lower()]) == kind.islower() for kind in self.kinds)


CharAutomaton: TypeAlias = Automaton[CharSet]
CharPart: TypeAlias = Part[CharSet]


def char_automaton(pattern: str) -> CharAutomaton | None:
    """From state 0 to the last. None: the pattern is not plain, or large."""
    automaton = CharAutomaton()
    try:
        part = pattern_part(pattern)
        part(automaton, automaton.add_state(), automaton.add_state())
        last = automaton.add_state()
    except (NotPlain, TooLarge):
        return None
    automaton.free_moves[1].append(last)
    return automaton


def pattern_part(pattern: str) -> CharPart:
    """The texts that match; raises NotPlain."""
    return _Reader(pattern).whole()


def step(automaton: CharAutomaton, states: Iterable[int], char: str) -> set[int] | None:
    """The states that these lead to by a character. None: it depends on the version of Unicode."""
    reached = set[int]()
    for state in states:
        for chars, end in automaton.moves[state]:
            has = chars.has(char)
            if has is None:
                return None
            if has:
                reached.add(end)
    return automaton.closure(reached)


class NotPlain(Exception):
    """Read differently by different dialects, or too much to follow."""


class _Reader:
    """Recursive descent."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> CharPart:
        anchored = self._take("^")
        part, num_branches = self._branches()
        if self._take("$"):
            anchored = True
        if self._at < len(self._text) or (anchored and num_branches > 1):
            raise NotPlain
        return part

    def _branches(self) -> tuple[CharPart, int]:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return (parts[0] if len(parts) == 1 else any_of(parts)), len(parts)

    def _sequence(self) -> CharPart:
        parts = []
        while self._peek() not in ("", "|", ")", "$"):
            parts.append(self._repeated(self._single()))
        return one_after_another(parts)

    def _single(self) -> CharPart:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return one(self._set())
        if char == ".":
            return one(CharSet((("\n", "\n"),), negated=True))
        if char == "\\":
            return one(self._escaped())
        if char in _SPECIAL:
            raise NotPlain
        return one(CharSet(((char, char),)))

    def _group(self) -> CharPart:
        if self._take("?") and not self._take(":"):
            raise NotPlain
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NotPlain
        part, _ = self._branches()
        self._depth -= 1
        if not self._take(")"):
            raise NotPlain
        return part

    def _repeated(self, part: CharPart) -> CharPart:
        sign = self._peek()
        if sign not in ("*", "+", "?", "{"):
            return part
        self._at += 1
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._bounds()
        if self._peek() in ("*", "+", "?", "{"):
            raise NotPlain  # lazy, possessive, or repeated again
        return repetition(part, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        least = self._number()
        most: int | None = least
        if self._take(","):
            most = None if self._peek() == "}" else self._number()
        if not self._take("}") or max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
            raise NotPlain
        return least, most

    def _number(self) -> int:
        digits = ""
        while (char := self._peek()) != "" and char in string.digits:
            digits += self._next()
        if not 0 < len(digits) <= 6:
            raise NotPlain
        return int(digits)

    def _set(self) -> CharSet:
        negated = self._take("^")
        ranges, kinds = list[tuple[str, str]](), set[str]()
        while not self._take("]"):
            member = self._member()
            kinds |= member.kinds
            if self._text.startswith("--", self._at):
                raise NotPlain
            if self._peek() == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._member()
                if member.kinds or last.kinds or last.ranges < member.ranges:
                    raise NotPlain
                ranges.append((member.ranges[0][0], last.ranges[0][0]))
            else:
                ranges += member.ranges
        if not ranges and not kinds:
            raise NotPlain
        return CharSet(tuple(ranges), frozenset(kinds), negated)

    def _member(self) -> CharSet:
        char = self._next()
        if char == "\\":
            return self._escaped()
        if char in "[]" or (char in _DOUBLED and self._peek() == char):
            raise NotPlain
        return CharSet(((char, char),))

    def _escaped(self) -> CharSet:
        char = self._next()
        if char.lower() in _KINDS:
            return CharSet((), frozenset({char}))
        char = _CONTROLS.get(char, char if char in _ESCAPABLE else "")
        if not char:
            raise NotPlain
        return CharSet(((char, char),))

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise NotPlain
        self._at += 1
        return char

    def _take(self, char: str) -> bool:
        found = self._peek() == char
        self._at += found
        return found
