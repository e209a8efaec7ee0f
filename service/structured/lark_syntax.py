"""A Lark grammar's text, in llguidance's dialect -> automata of its rules and terminals, or None if it asks for more.

Read are rules and terminals made of strings, regexes, ranges, names, groups, `|`, repetitions and aliases; `%ignore`,
and `%import` of common terminals. Anything else (lazy rules, `%json`, priorities, parameters, flags, ...) is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from service.structured.automaton import Automaton, Label, Part, TooLarge, any_of, one, one_after_another, repetition
from service.structured.regex_syntax import CharAutomaton, CharPart, CharSet, NotPlain, pattern_part

_TOKEN = re.compile(
    r"""(?P<skipped>[ \t]+|(?:\#|//)[^\n]*)
    |(?P<newline>(?:\r?\n)+[ \t]*)
    |(?P<statement>%[a-z]+)
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    |(?P<rule>[!?]*_?[a-z][_a-z0-9-]*)
    |(?P<terminal>_?[A-Z][_A-Z0-9-]*)
    |(?P<number>[0-9]+)
    |(?P<sign>->|\.\.|[:|()\[\]{},~+*?.])""",
    re.VERBOSE,
)
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"(\+|-)?[0-9]+",
    "FLOAT": r"([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+",
    "NUMBER": r"([0-9]+)|([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": "[ \t]+",
    "WS": "[ \t\f\r\n]+",
    "NEWLINE": "(\r?\n)+",
}
_ALSO = {"k": "\u212a", "s": "\u017f"}
"""Other characters that are the same letter if its case does not count."""


class Symbol(NamedTuple):
    """What a rule may consist of: another rule, or a terminal, by its number."""

    is_rule: bool
    number: int


RuleAutomaton: TypeAlias = Automaton[Symbol]
RulePart: TypeAlias = Part[Symbol]


@dataclass(slots=True)
class Lark:
    """rules, chars: automata of all rules, and of all terminals. rule_bounds, terminal_bounds: first and last state of
    each; rule 0 is `start`. ignored: the terminal that may stand between others.
    """

    rules: RuleAutomaton = field(default_factory=RuleAutomaton)
    rule_bounds: list[tuple[int, int]] = field(default_factory=list)
    chars: CharAutomaton = field(default_factory=CharAutomaton)
    terminal_bounds: list[tuple[int, int]] = field(default_factory=list)
    ignored: int | None = None


def read_lark(text: str) -> Lark | None:
    """None: its texts cannot be followed."""
    try:
        return _Builder(_Reader(text)).lark
    except (NotPlain, TooLarge, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class _Value:
    """kind: `string`, `regex`, `rule`, `terminal`, or `range` (text and last are its ends)."""

    kind: str
    text: str
    last: str = ""


@dataclass(frozen=True, slots=True)
class _Repeated:
    """most None: without end."""

    atom: _Value | _Choice
    least: int
    most: int | None


_Choice: TypeAlias = "tuple[tuple[_Repeated, ...], ...]"
"""Alternatives, each a sequence."""


class _Reader:
    """Recursive descent over the tokens: `rules` and `terminals` by name, and what is `ignored`."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self.rules: dict[str, _Choice] = {}
        self.terminals: dict[str, _Choice] = {}
        self.ignored: list[_Choice] = []
        while not self._is("end"):
            if not self._take("newline"):
                self._item()

    def _item(self) -> None:
        kind, text = self._next()
        if kind == "rule":
            self._define(self.rules, text.lstrip("!?"))
        elif kind == "terminal":
            self._define(self.terminals, text)
        elif text == "%ignore":
            self.ignored.append(self._choice())
        elif text == "%import":
            self._import()
        elif text != "%llguidance" or not (self._take("sign", "{") and self._take("sign", "}")):  # options: none
            raise NotPlain
        if not (self._take("newline") or self._is("end")):
            raise NotPlain

    def _define(self, into: dict[str, _Choice], name: str) -> None:
        if name in into or not self._take("sign", ":"):
            raise NotPlain
        into[name] = self._choice()

    def _import(self) -> None:
        if self._next() != ("rule", "common") or not self._take("sign", "."):
            raise NotPlain
        kind, name = self._next()
        if kind != "terminal" or name not in _COMMON:
            raise NotPlain
        alias = self._next()[1] if self._take("sign", "->") else name
        if alias in self.terminals:
            raise NotPlain
        self.terminals[alias] = ((_Repeated(_Value("regex", _COMMON[name]), 1, 1),),)

    def _choice(self) -> _Choice:
        alternatives = [self._sequence()]
        while self._bar():
            alternatives.append(self._sequence())
        return tuple(alternatives)

    def _bar(self) -> bool:
        before = self._at
        self._take("newline")
        if self._take("sign", "|"):
            return True
        self._at = before
        return False

    def _sequence(self) -> tuple[_Repeated, ...]:
        parts = []
        while not (self._is("newline") or self._is("end") or any(self._is("sign", sign) for sign in ("|", ")", "]"))):
            if self._take("sign", "->"):
                if self._next()[0] != "rule":
                    raise NotPlain
                break
            parts.append(self._repeated())
        return tuple(parts)

    def _repeated(self) -> _Repeated:
        if self._take("sign", "["):
            return _Repeated(self._group("]"), 0, 1)
        atom = self._group(")") if self._take("sign", "(") else self._value()
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take("sign", sign):
                return _Repeated(atom, least, most)
        return _Repeated(atom, *self._bounds())

    def _bounds(self) -> tuple[int, int | None]:
        if self._take("sign", "~"):
            least = self._number()
            return least, (self._number() if self._take("sign", "..") else least)
        if not self._take("sign", "{"):
            return 1, 1
        least = 0 if self._is("sign", ",") else self._number()
        most: int | None = least
        if self._take("sign", ","):
            most = None if self._is("sign", "}") else self._number()
        if not self._take("sign", "}"):
            raise NotPlain
        return least, most

    def _number(self) -> int:
        kind, text = self._next()
        if kind != "number" or len(text) > 4:
            raise NotPlain
        return int(text)

    def _group(self, end: str) -> _Choice:
        choice = self._choice()
        if not self._take("sign", end):
            raise NotPlain
        return choice

    def _value(self) -> _Value:
        kind, text = self._next()
        if kind == "string" and self._take("sign", ".."):
            end_kind, last = self._next()
            if end_kind != "string":
                raise NotPlain
            return _Value("range", text, last)
        if kind not in ("string", "regex", "rule", "terminal"):
            raise NotPlain
        return _Value(kind, text)

    def _is(self, kind: str, text: str | None = None) -> bool:
        token = self._tokens[self._at]
        return token[0] == kind and text in (None, token[1])

    def _take(self, kind: str, text: str | None = None) -> bool:
        found = self._is(kind, text)
        self._at += found
        return found

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        if token[0] == "end":
            raise NotPlain
        self._at += 1
        return token


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotPlain
        at = match.end()
        if match.lastgroup is not None and match.lastgroup != "skipped":
            yield match.lastgroup, match[0]
    yield "end", ""


class _Builder:
    """What was read -> automata."""

    def __init__(self, reader: _Reader) -> None:
        self._rules, self._terminals = reader.rules, reader.terminals
        self._rule_numbers: dict[str, int] = {}
        self._terminal_numbers: dict[_Value, int] = {}
        self._parts: dict[str, CharPart] = {}
        self._begun = set[str]()
        self.lark = Lark()
        self._waiting = ["start"]
        self._number_of_rule("start")
        while self._waiting:
            name = self._waiting.pop()
            part = self._rule_choice(self._rules[name])
            part(self.lark.rules, *self.lark.rule_bounds[self._rule_numbers[name]])
        if reader.ignored:
            self.lark.ignored = self._add_terminal(any_of([self._char_choice(each) for each in reader.ignored]))

    def _number_of_rule(self, name: str) -> int:
        if name not in self._rule_numbers:
            if name not in self._rules:
                raise NotPlain
            self._rule_numbers[name] = len(self._rule_numbers)
            self.lark.rule_bounds.append((self.lark.rules.add_state(), self.lark.rules.add_state()))
            if name != "start":
                self._waiting.append(name)
        return self._rule_numbers[name]

    def _rule_choice(self, choice: _Choice) -> RulePart:
        return _choice_part(choice, self._rule_atom)

    def _rule_atom(self, atom: _Value | _Choice) -> RulePart:
        if isinstance(atom, tuple):
            return self._rule_choice(atom)
        if atom.kind == "rule":
            return one(Symbol(True, self._number_of_rule(atom.text)))
        if atom.kind == "string" and atom.text == '""':
            return one_after_another([])
        if atom not in self._terminal_numbers:
            self._terminal_numbers[atom] = self._add_terminal(self._char_atom(atom))
        return one(Symbol(False, self._terminal_numbers[atom]))

    def _add_terminal(self, part: CharPart) -> int:
        chars = self.lark.chars
        first, last = chars.add_state(), chars.add_state()
        part(chars, first, last)
        if last in chars.closure({first}):
            raise NotPlain  # how an empty terminal is read is not said
        self.lark.terminal_bounds.append((first, last))
        return len(self.lark.terminal_bounds) - 1

    def _char_choice(self, choice: _Choice) -> CharPart:
        return _choice_part(choice, self._char_atom)

    def _char_atom(self, atom: _Value | _Choice) -> CharPart:
        if isinstance(atom, tuple):
            return self._char_choice(atom)
        match atom.kind:
            case "string":
                return _string_part(atom.text)
            case "range":
                first, last = _unquoted(atom.text), _unquoted(atom.last)
                if not (len(first) == len(last) == 1):
                    raise NotPlain
                return one(CharSet(((first, last),)))
            case "regex":
                return _regex_part(atom.text)
            case "terminal":
                return self._terminal(atom.text)
        raise NotPlain

    def _terminal(self, name: str) -> CharPart:
        if name not in self._parts:
            if name not in self._terminals or name in self._begun:
                raise NotPlain
            self._begun.add(name)
            self._parts[name] = self._char_choice(self._terminals[name])
        return self._parts[name]


def _choice_part(choice: _Choice, part_of: Callable[[_Value | _Choice], Part[Label]]) -> Part[Label]:
    """part_of: of an atom, as a rule or as a terminal has it."""
    sequences = [
        one_after_another([repetition(part_of(each.atom), each.least, each.most) for each in sequence])
        for sequence in choice
    ]
    return any_of(sequences)


def _regex_part(text: str) -> CharPart:
    """`/.../`, or the pattern alone of a common terminal."""
    pattern = text
    if text.startswith("/"):
        if not text.endswith("/"):
            raise NotPlain  # flags
        pattern = text[1:-1]
    if pattern.startswith("^") or pattern.endswith("$"):
        raise NotPlain
    return pattern_part(pattern)


def _string_part(text: str) -> CharPart:
    if not text.endswith("i"):
        return one_after_another([one(CharSet(((char, char),))) for char in _unquoted(text)])
    return one_after_another([_either_case(char) for char in _unquoted(text[:-1])])


def _either_case(char: str) -> CharPart:
    if not char.isascii():
        raise NotPlain
    lower = char.lower()
    return one(CharSet(tuple((each, each) for each in {lower, char.upper(), _ALSO.get(lower, lower)})))


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        raise NotPlain from None
