"""Rows of Earley's parser (1970); rows that continue alike are one and the same.

A row holds items, each a state of a rule's automaton and the row in which the rule began. Rows are numbered by what
they hold, not by where in a text they stand: after each element of a list the row is the same one, however long it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from service.structured.lark_automata import Lark, Symbol

_MAX_ITEMS = 150
"""In one row. Making it takes some 5 us for each, once a row."""
_MAX_ITEMS_IN_ALL = 8_000
_ITEMS_A_ROW = 4
"""What a row takes beside its items, in items."""
_MAX_AFTER = 2_000
"""Answers of `after` that are remembered."""

_ITSELF = -1
"""In a row's items: the rule began in this row."""

Item = tuple[int, int]


class _Row:
    """wanted: the symbols that may come next, and the items that each leads to."""

    def __init__(self) -> None:
        self.wanted: dict[Symbol, list[Item]] = defaultdict(list)


class EarleyRows:
    """The rows that texts have reached. None stands for a row beyond the limits, or one that no text reaches."""

    def __init__(self, lark: Lark) -> None:
        self._lark = lark
        self._rule_that_ends: dict[int, int] = {last: rule for rule, (_, last) in enumerate(lark.rule_bounds)}
        self._important: dict[int, tuple[int, ...]] = {}
        self._after: dict[tuple[int, tuple[int, ...]], int | None] = {}
        self._rows: list[_Row] = []
        self._numbers: dict[frozenset[Item], int] = {}
        self._num_items = 0
        self.first = self._add([(lark.rule_bounds[0][0], _ITSELF)])

    def terminals(self, row: int) -> frozenset[int]:
        """Those that may come next."""
        return frozenset(symbol.number for symbol in self._rows[row].wanted if not symbol.is_rule)

    def after(self, row: int, terminals: Iterable[int]) -> int | None:
        """The row after a piece of text that is each of these terminals."""
        key = (row, tuple(terminals))
        if key not in self._after:
            if len(self._after) == _MAX_AFTER:
                self._after.clear()
            self._after[key] = self._advance(*key)
        return self._after[key]

    def _advance(self, row: int, terminals: tuple[int, ...]) -> int | None:
        wanted = self._rows[row].wanted
        items = [item for terminal in terminals for item in wanted.get(Symbol(False, terminal), ())]
        return self._add([(state, row if began == _ITSELF else began) for state, began in items])

    def _add(self, kernel: list[Item]) -> int | None:
        closed = self._close(kernel)
        if closed is None:
            return None
        row, items = closed
        known = self._numbers.get(items)
        if known is not None:
            return known
        size = len(items) + _ITEMS_A_ROW
        if not items or self._num_items + size > _MAX_ITEMS_IN_ALL:
            return None
        self._num_items += size
        self._rows.append(row)
        self._numbers[items] = len(self._rows) - 1
        return len(self._rows) - 1

    def _close(self, kernel: list[Item]) -> tuple[_Row, frozenset[Item]] | None:
        """Predict and complete until nothing is new; the row, and those of its items that tell what may follow."""
        rules, row = self._lark.rules, _Row()
        items, waiting = set[Item](), list[Item]()
        empty = set[int]()  # rules that began and ended in this row: who asks for one later has it at once

        def add(item: Item) -> None:
            state, began = item
            for each in self._important_from(state):
                if (each, began) not in items:
                    items.add((each, began))
                    waiting.append((each, began))

        for item in kernel:
            add(item)
        while waiting:
            if len(items) > _MAX_ITEMS:
                return None
            state, began = waiting.pop()
            for symbol, end in rules.moves[state]:
                row.wanted[symbol].append((end, began))
                if symbol.is_rule:
                    add((self._lark.rule_bounds[symbol.number][0], _ITSELF))
                    if symbol.number in empty:
                        add((end, began))
            rule = self._rule_that_ends.get(state)
            if rule is not None:
                if began == _ITSELF:
                    empty.add(rule)
                for item in self._advanced_by(rule, began, row):
                    add(item)
        whole = self._lark.rule_bounds[0][1]
        return row, frozenset(item for item in items if rules.moves[item[0]] or item[0] == whole)

    def _advanced_by(self, rule: int, began: int, row: _Row) -> list[Item]:
        """The items of `row` that waited for this rule where it began, and have it behind them now."""
        symbol = Symbol(True, rule)
        if began == _ITSELF:
            return list(row.wanted.get(symbol, ()))
        wanted = self._rows[began].wanted.get(symbol, ())
        return [(end, began if before == _ITSELF else before) for end, before in wanted]

    def _important_from(self, state: int) -> tuple[int, ...]:
        """States that this one leads to by nothing, and that lead on or end a rule; see `RegexStates`."""
        if state not in self._important:
            moves = self._lark.rules.moves
            reached = self._lark.rules.closure({state})
            self._important[state] = tuple(each for each in reached if moves[each] or each in self._rule_that_ends)
        return self._important[state]
