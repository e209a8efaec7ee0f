"""What a call asks of its draws beyond temperature, top-k and top-p: validated, then turned into ids."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypedDict

from service.api.calls.token_checks import INT64_MAX, check_range, check_token_ids, quote
from service.api.serving_state import GenerationDefaults, ServedModel
from service.config import ApiConfig
from service.errors import InvalidRequest
from service.protocol.generation import GenerationFields

_REPETITION = (0.01, 100)
"""Beyond them logits overflow."""


@dataclass(frozen=True, slots=True)
class DrawRules:
    """As the client wrote them; ids are in the vocabulary only once `sampling_fields` has looked."""

    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    bad_words: tuple[str, ...]
    allowed_token_ids: tuple[int, ...] | None
    min_tokens: int


class SamplingFields(TypedDict):
    """Fields of SamplingParams."""

    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    bad_words: tuple[tuple[int, ...], ...]
    allowed_token_ids: tuple[int, ...] | None
    min_tokens: int


def check_draw_rules(fields: GenerationFields, config: ApiConfig, defaults: GenerationDefaults) -> DrawRules:
    """Everything that needs no vocabulary."""
    check_range("min_p", fields.min_p, 0, 1)
    check_range("presence_penalty", fields.presence_penalty, -2, 2)
    check_range("frequency_penalty", fields.frequency_penalty, -2, 2)
    check_range("repetition_penalty", fields.repetition_penalty, *_REPETITION)
    check_range("min_tokens", fields.min_tokens, 0, INT64_MAX)
    return DrawRules(
        min_p=defaults.min_p if fields.min_p is None else fields.min_p,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        repetition_penalty=defaults.repetition_penalty
        if fields.repetition_penalty is None
        else fields.repetition_penalty,
        logit_bias=_check_logit_bias(fields.logit_bias or {}),
        bad_words=_check_bad_words(fields.bad_words or [], config),
        allowed_token_ids=_check_allowed(fields.allowed_token_ids),
        min_tokens=fields.min_tokens or 0,
    )


def sampling_fields(rules: DrawRules, model: ServedModel, stop_token_ids: Collection[int]) -> SamplingFields:
    """The rules in ids of the model's vocabulary; refuses those that could leave nothing to draw."""
    check_token_ids([token_id for token_id, _ in rules.logit_bias], model.vocab_size, "logit_bias")
    check_token_ids(rules.allowed_token_ids or (), model.vocab_size, "allowed_token_ids")
    bad_words = tuple(ids for word in rules.bad_words for ids in _ids_of_bad_word(word, model))
    forbidden = {ids[-1] for ids in bad_words} | (set(stop_token_ids) if rules.min_tokens else set())
    allowed = range(model.vocab_size) if rules.allowed_token_ids is None else rules.allowed_token_ids
    if forbidden.issuperset(allowed):
        param = "bad_words" if rules.allowed_token_ids is None else "allowed_token_ids"
        raise InvalidRequest(f"{param}: min_tokens and bad_words can leave no token to draw.", param=param)
    return SamplingFields(
        min_p=rules.min_p,
        presence_penalty=rules.presence_penalty,
        frequency_penalty=rules.frequency_penalty,
        repetition_penalty=rules.repetition_penalty,
        logit_bias=rules.logit_bias,
        bad_words=bad_words,
        allowed_token_ids=rules.allowed_token_ids,
        min_tokens=rules.min_tokens,
    )


def _check_logit_bias(bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    by_id: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise InvalidRequest(f"logit_bias: {quote(key)} is not a token id.", param="logit_bias")
        if not -100 <= value <= 100 or math.isnan(value):
            raise InvalidRequest("logit_bias: every value must be between -100 and 100.", param="logit_bias")
        by_id[int(key)] = float(value)
    return tuple(by_id.items())


def _check_bad_words(words: list[str], config: ApiConfig) -> tuple[str, ...]:
    if len(words) > config.max_bad_words:
        raise InvalidRequest(f"bad_words may hold at most {config.max_bad_words} words.", param="bad_words")
    if any(not word.strip() or len(word.encode()) > config.max_stop_bytes for word in words):
        raise InvalidRequest(
            f"bad_words: each word must have 1 to {config.max_stop_bytes} bytes, not all of them spaces.",
            param="bad_words",
        )
    return tuple(words)


def _check_allowed(token_ids: list[int] | None) -> tuple[int, ...] | None:
    if token_ids is None:
        return None
    if not token_ids:
        raise InvalidRequest("allowed_token_ids must hold at least one id.", param="allowed_token_ids")
    return tuple(sorted(set(token_ids)))


def _ids_of_bad_word(word: str, model: ServedModel) -> list[tuple[int, ...]]:
    """As it is written at the beginning of a text, and behind a space, as vLLM does; without what cannot be drawn."""
    bare = word.lstrip()
    spellings = [tuple(model.tokenizer.encode(text, add_special_tokens=False)) for text in (bare, f" {bare}")]
    first, spaced = spellings
    if spaced and (len(spaced) != len(first) or spaced[0] == first[0]):
        spellings.pop()  # the space is a token of its own, so the first spelling covers it
    return [ids for ids in dict.fromkeys(spellings) if ids and max(ids) < model.vocab_size]
