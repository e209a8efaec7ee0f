"""A Lark grammar's definitions -> automata of its rules and of its terminals (Thompson 1968)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from service.structured.automaton import Automaton, Label, Part, TooLarge, any_of, one, one_after_another, repetition
from service.structured.lark_syntax import Choice, LarkDefinitions, Value
from service.structured.regex_syntax import CharAutomaton, CharPart, CharSet, NotPlain, pattern_part

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
    """The grammar of this text; None if it asks for more than can be followed."""
    try:
        return _Builder(LarkDefinitions(text)).lark
    except (NotPlain, TooLarge, RecursionError):
        return None


class _Builder:
    """Makes the automata of `start` and of all that it needs."""

    def __init__(self, definitions: LarkDefinitions) -> None:
        self._rules, self._terminals = definitions.rules, definitions.terminals
        self._rule_numbers: dict[str, int] = {}
        self._terminal_numbers: dict[Value, int] = {}
        self._parts: dict[str, CharPart] = {}
        self._begun = set[str]()
        self.lark = Lark()
        self._waiting = ["start"]
        self._number_of_rule("start")
        while self._waiting:
            name = self._waiting.pop()
            part = self._rule_choice(self._rules[name])
            part(self.lark.rules, *self.lark.rule_bounds[self._rule_numbers[name]])
        if definitions.ignored:
            self.lark.ignored = self._add_terminal(any_of([self._char_choice(each) for each in definitions.ignored]))

    def _number_of_rule(self, name: str) -> int:
        if name not in self._rule_numbers:
            if name not in self._rules:
                raise NotPlain
            self._rule_numbers[name] = len(self._rule_numbers)
            self.lark.rule_bounds.append((self.lark.rules.add_state(), self.lark.rules.add_state()))
            if name != "start":
                self._waiting.append(name)
        return self._rule_numbers[name]

    def _rule_choice(self, choice: Choice) -> RulePart:
        return _choice_part(choice, self._rule_atom)

    def _rule_atom(self, atom: Value | Choice) -> RulePart:
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

    def _char_choice(self, choice: Choice) -> CharPart:
        return _choice_part(choice, self._char_atom)

    def _char_atom(self, atom: Value | Choice) -> CharPart:
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


def _choice_part(choice: Choice, part_of: Callable[[Value | Choice], Part[Label]]) -> Part[Label]:
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
