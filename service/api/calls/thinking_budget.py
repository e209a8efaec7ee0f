"""`thinking_token_budget`: the maximum number of reasoning tokens, after which the token that ends the reasoning is
forced, as in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.api.calls.sampling import CheckedSampling
from service.api.calls.token_checks import INT64_MAX, check_range
from service.api.serving_state import ServedModel
from service.core.grammar import Grammar, Grammars, ThinkingBudget
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.generation import GenerationFields
from service.text.reasoning import CLOSE, OPEN

_PARAM = "thinking_token_budget"


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """num_tokens: between `think` and `end_think`, with those in the prompt."""

    num_tokens: int
    think: int | None
    end_think: int
    grammars: Grammars

    def applied(self, grammar: Grammar | None, prompt: Sequence[int]) -> Grammar:
        """The grammar of the output after this prompt: the given one, with the limit."""
        num_there = self._num_thought(prompt)
        left = self.num_tokens if num_there is None else max(0, self.num_tokens - num_there)
        is_thinking = num_there is not None
        return self.grammars.limited(grammar, ThinkingBudget(left, self.think, self.end_think, is_thinking))

    def _num_thought(self, prompt: Sequence[int]) -> int | None:
        """The number of tokens of a reasoning block that the prompt leaves open; None if it leaves none open."""
        num_behind = None if self.think is None else _num_behind(prompt, self.think)
        if num_behind is None or self.end_think in prompt[len(prompt) - num_behind :]:
            return None
        return num_behind


def check_thinking_budget(fields: GenerationFields, model: ServedModel) -> ThinkingLimit | None:
    """None if there is no limit."""
    budget = fields.thinking_token_budget
    check_range(_PARAM, budget, -1, INT64_MAX)
    if budget is None or budget == -1:
        return None
    end_think, think = end_think_id(model), _id_of(OPEN, model)
    if end_think is None or model.grammars is None:
        raise UnsupportedParameter(
            f"{_PARAM} is not supported: this model has no token that ends its thinking.", param=_PARAM
        )
    return ThinkingLimit(budget, think, end_think, model.grammars)


def check_beside_budget(limit: ThinkingLimit, sampling: CheckedSampling, stop_token_ids: frozenset[int]) -> None:
    """It must be possible to sample the token that ends the reasoning."""
    if sampling.beam is not None:
        raise InvalidRequest(f"{_PARAM} cannot be combined with use_beam_search.", param=_PARAM)
    allowed = sampling.allowed_token_ids
    if allowed is not None and limit.end_think not in allowed:
        raise InvalidRequest(
            f"{_PARAM}: allowed_token_ids must hold {limit.end_think}, the token that ends the thinking.", param=_PARAM
        )
    if sampling.by_name.get("min_tokens") and limit.end_think in stop_token_ids:
        raise InvalidRequest(
            f"{_PARAM}: min_tokens would hold off token {limit.end_think}, which ends the thinking and is in "
            "stop_token_ids.",
            param=_PARAM,
        )


def end_think_id(model: ServedModel) -> int | None:
    """Id of the token that ends the model's reasoning; None if no single token does."""
    return _id_of(CLOSE, model)


def _num_behind(ids: Sequence[int], token_id: int) -> int | None:
    """How many ids follow the last occurrence of `token_id`; None if there is none."""
    try:
        return ids[::-1].index(token_id)
    except ValueError:
        return None


def _id_of(text: str, model: ServedModel) -> int | None:
    token_id = model.tokenizer.id_of(text)
    return None if token_id is None or token_id >= model.vocab_size else token_id
