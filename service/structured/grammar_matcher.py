"""One sequence's place in its grammar: accept a token, finished?, fork."""

from __future__ import annotations

import time
from typing import Protocol

from llguidance import LLMatcher

from service.errors import InvalidRequest
from service.structured.grammar_errors import grammar_fault

_SLOW_ACCEPT_S = 0.05
"""Of the engine's thread, for one token; 1 us is usual. Where a text may be read in very many ways, each token takes
longer than the one before: `s: s s | "a"` reaches this after some 60, and a mask takes three times as long at most."""
_MAX_SLOW_ACCEPTS = 3
"""More than one, for the time is the clock's: the thread may have been made to wait."""


class StructuredMatcher(Protocol):
    """What `TokenBitmask` asks of a matcher. Does not change state."""

    @property
    def constraint(self) -> LLMatcher | int | None:
        """The matcher whose mask holds now; an id: nothing but this one; None: anything but the end of the text."""
        ...

    @property
    def also_allowed(self) -> int | None:
        """An id that is allowed beside the mask."""
        ...


class CompiledGrammar:
    """A grammar that is ready.

    num_bytes: about what it takes, its lexer's tables included. param: the request field that asked for it.
    """

    follows_reasoning = False

    def __init__(self, prototype: LLMatcher, num_bytes: int, param: str) -> None:
        self._prototype = prototype
        self.param = param
        self.num_bytes = num_bytes
        self.is_spent = False  # its lexer, which all its matchers share, has outgrown its limits

    def start(self) -> GrammarMatcher:
        return GrammarMatcher(self, self._prototype.deep_copy())


class GrammarMatcher:
    """The text so far is a beginning of what the grammar describes."""

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
        """See `Matcher`. After a mask that could not be computed llguidance allows the end alone, and takes it."""
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
