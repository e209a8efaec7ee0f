"""A sequence that may think before its grammar applies, within a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llguidance import LLMatcher

from service.core.grammar import ThinkingBudget
from service.errors import InvalidRequest
from service.structured.grammar_matcher import CompiledGrammar, GrammarMatcher


@dataclass(frozen=True, slots=True)
class ReasoningGrammar:
    """A grammar for the text after the reasoning; None: any text.

    end_think: id that ends the reasoning. think: id that begins it; None if the prompt has begun it. If there is also a
    grammar, the first token must be `think` or match the grammar. budget: the most reasoning tokens; None: no limit.
    """

    grammar: CompiledGrammar | None
    end_think: int
    think: int | None
    budget: int | None = None

    @property
    def follows_reasoning(self) -> bool:
        return True

    def start(self) -> ReasoningMatcher:
        after = None if self.grammar is None else self.grammar.start()
        return ReasoningMatcher(after, self.end_think, self.think, self.budget, is_thinking=self.think is None)


def limited(
    grammar: CompiledGrammar | ReasoningGrammar | None, budget: ThinkingBudget
) -> CompiledGrammar | ReasoningGrammar:
    """See `Grammars`. A grammar without reasoning has nothing to limit and is returned as it is."""
    if grammar is None:
        return ReasoningGrammar(None, budget.end_think, None if budget.is_thinking else budget.think, budget.num_tokens)
    if isinstance(grammar, ReasoningGrammar):
        return replace(grammar, budget=budget.num_tokens)
    return grammar


class ReasoningMatcher:
    """While the model thinks, everything is allowed except the end of the text; once the budget is spent, only the end
    of the reasoning is. After that the grammar applies.

    left: budget left, in tokens. also_allowed: `think`, as long as the reasoning may still begin before a grammar.
    """

    def __init__(
        self, after: GrammarMatcher | None, end_think: int, think: int | None, left: int | None, *, is_thinking: bool
    ) -> None:
        self._after = after
        self._end_think = end_think
        self._think = think
        self._left = left
        self._is_thinking = is_thinking

    @property
    def also_allowed(self) -> int | None:
        return None if self._after is None or self._is_thinking else self._think

    @property
    def allows_anything(self) -> bool:
        return self._after is None and not (self._is_thinking and self._left == 0)

    @property
    def constraint(self) -> LLMatcher | int | None:
        if self._is_thinking:
            return self._end_think if self._left == 0 else None
        return None if self._after is None else self._after.constraint

    @property
    def is_finished(self) -> bool:
        return not self._is_thinking and self._after is not None and self._after.is_finished

    def accept(self, token_id: int) -> bool:
        if self._is_thinking:
            self._is_thinking = token_id != self._end_think
            if self._is_thinking and self._left:
                self._left -= 1
            return True
        begins = token_id == self._think
        if begins or self._after is not None:
            self._think = None  # it thinks only once, and not after the grammar's first token
        self._is_thinking = begins
        return begins or self._after is None or self._after.accept(token_id)

    @property
    def refusal(self) -> InvalidRequest | None:
        return None if self._after is None else self._after.refusal

    def fork(self) -> ReasoningMatcher:
        after = None if self._after is None else self._after.fork()
        return ReasoningMatcher(after, self._end_think, self._think, self._left, is_thinking=self._is_thinking)
