"""A Lark grammar's text, in llguidance's dialect -> what it defines, as trees. NotPlain if it asks for more.

Read are rules and terminals made of strings, regexes, ranges, names, groups, `|`, repetitions and aliases; `%ignore`,
and `%import` of common terminals. Anything else (lazy rules, `%json`, priorities, parameters, flags, ...) is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from service.structured.regex_syntax import NotPlain

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


@dataclass(frozen=True, slots=True)
class Value:
    """kind: `string`, `regex`, `rule`, `terminal`, or `range` (text and last are its ends)."""

    kind: str
    text: str
    last: str = ""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part of a sequence, `least` to `most` times; most None: without end."""

    atom: Value | Choice
    least: int
    most: int | None


Choice: TypeAlias = "tuple[tuple[Repeated, ...], ...]"
"""Alternatives, each a sequence of parts."""


class LarkDefinitions:
    """What a grammar's text defines: `rules` and `terminals` by name, and what is `ignored` between terminals.

    Read by recursive descent over the tokens. Raises NotPlain.
    """

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self.rules: dict[str, Choice] = {}
        self.terminals: dict[str, Choice] = {}
        self.ignored: list[Choice] = []
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

    def _define(self, into: dict[str, Choice], name: str) -> None:
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
        self.terminals[alias] = ((Repeated(Value("regex", _COMMON[name]), 1, 1),),)

    def _choice(self) -> Choice:
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

    def _sequence(self) -> tuple[Repeated, ...]:
        parts = []
        while not (self._is("newline") or self._is("end") or any(self._is("sign", sign) for sign in ("|", ")", "]"))):
            if self._take("sign", "->"):
                if self._next()[0] != "rule":
                    raise NotPlain
                break
            parts.append(self._repeated())
        return tuple(parts)

    def _repeated(self) -> Repeated:
        if self._take("sign", "["):
            return Repeated(self._group("]"), 0, 1)
        atom = self._group(")") if self._take("sign", "(") else self._value()
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take("sign", sign):
                return Repeated(atom, least, most)
        return Repeated(atom, *self._bounds())

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

    def _group(self, end: str) -> Choice:
        choice = self._choice()
        if not self._take("sign", end):
            raise NotPlain
        return choice

    def _value(self) -> Value:
        kind, text = self._next()
        if kind == "string" and self._take("sign", ".."):
            end_kind, last = self._next()
            if end_kind != "string":
                raise NotPlain
            return Value("range", text, last)
        if kind not in ("string", "regex", "rule", "terminal"):
            raise NotPlain
        return Value(kind, text)

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
