"""The position of one sequence in its grammar: accept a token, check for the end, fork."""

from __future__ import annotations

import time
from typing import Protocol

from llguidance import LLMatcher

from service.errors import InvalidRequest
from service.structured.grammar_errors import grammar_fault

_SLOW_ACCEPT_S = 0.05
"""Engine-thread seconds for one token; 1 us is usual. In a very ambiguous grammar every token takes longer than the
last: `s: s s | "a"` reaches this after about 60 tokens, and a mask then takes at most three times as long."""
_MAX_SLOW_ACCEPTS = 3
"""Not a single one, since this is wall-clock time, and the thread may just have been preempted."""


class StructuredMatcher(Protocol):
    """What `TokenBitmask` asks of a matcher. Does not change state."""

    @property
    def constraint(self) -> LLMatcher | int | None:
        """What is allowed next: what this LLMatcher's mask says; an id: only that id; None: everything but an end."""
        ...

    @property
    def also_allowed(self) -> int | None:
        """An id that is allowed in addition."""
        ...


class CompiledGrammar:
    """A compiled grammar.

    num_bytes: approximate memory, including the lexer's tables. param: the request field that it came from.
    """

    follows_reasoning = False

    def __init__(self, prototype: LLMatcher, num_bytes: int, param: str) -> None:
        self._prototype = prototype
        self.param = param
        self.num_bytes = num_bytes
        self.is_spent = False  # the lexer, which all its matchers share, has exceeded its limits

    def start(self) -> GrammarMatcher:
        return GrammarMatcher(self, self._prototype.deep_copy())


class GrammarMatcher:
    """Invariant: the text so far is a prefix of some text that the grammar describes."""

    also_allowed: int | None = None
    allows_anything = False

    def __init__(self, grammar: CompiledGrammar, state: LLMatcher) -> None:
        self._grammar = grammar
        self._state = state
        self._num_slow = 0

    @property
    def constraint(self) -> LLMatcher:
        return self._state

    @property
    def is_finished(self) -> bool:
        return bool(self._state.is_stopped())

    def accept(self, token_id: int) -> bool:
        """See `Matcher`. If a mask could not be computed, llguidance allows only the end, and would accept it."""
        started_s = time.perf_counter()
        fits = not self._state.is_error() and self._state.consume_token(token_id)
        if time.perf_counter() - started_s > _SLOW_ACCEPT_S:
            self._num_slow += 1
        if fits and self._num_slow < _MAX_SLOW_ACCEPTS:
            return True
        self._grammar.is_spent = True
        return False

    @property
    def refusal(self) -> InvalidRequest | None:
        """See `Matcher`."""
        param, error = self._grammar.param, self._state.get_error()
        if self._num_slow == _MAX_SLOW_ACCEPTS:
            why = "reading the output by this grammar takes too long; make it less ambiguous"
        elif "satisfy the grammar" in error:
            return None
        else:
            why = f"the grammar exceeds the limits of this server: {grammar_fault(error)}"
        return InvalidRequest(f"{param}: {why}.", param=param)

    def fork(self) -> GrammarMatcher:
        return GrammarMatcher(self._grammar, self._state.deep_copy())
