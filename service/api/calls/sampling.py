"""A call's sampling parameters: checked first without the vocabulary, then converted to ids of it."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, cast

from service.api.calls.beam_rules import check_beams, num_top_logprobs
from service.api.calls.token_checks import INT64_MAX, check_range, check_token_ids, quote
from service.api.serving_state import GenerationDefaults, ServedModel
from service.config import ApiConfig
from service.core.sampling_params import BeamParams, SamplingParams
from service.errors import InvalidRequest
from service.protocol.generation import GenerationFields, SamplingFields

_GREEDY_TEMPERATURE = 1e-5
"""Dividing logits by a smaller temperature only overflows; it means argmax."""
_GREEDY_TOP_P = 1e-6
"""The most probable of fewer than a million tokens alone has more probability than this."""
_GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
_BOUNDS = {
    name: cast(Mapping[str, float], field.json_schema_extra) for name, field in SamplingFields.model_fields.items()
}


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedSampling:
    """How tokens are sampled, as the client wrote it.

    n: choices that are generated; num_returned: the best of them that are returned. seed: None if the client gave none.
    by_name: parameters with the same names in SamplingParams. beam: the choices come from a beam search.
    num_logprobs: top log probabilities per generated token; logprob_token_ids: log probabilities of these tokens
        instead.
    Ids are checked against the vocabulary by `sampling_maker`.
    """

    n: int
    num_returned: int
    seed: int | None
    by_name: Mapping[str, Any]
    logit_bias: tuple[tuple[int, float], ...]
    bad_words: tuple[str, ...]
    allowed_token_ids: tuple[int, ...] | None
    num_logprobs: int | None
    logprob_token_ids: tuple[int, ...]
    beam: BeamParams | None
    deterministic: bool

    @property
    def num_sequences(self) -> int:
        """Sequences of one prompt that run side by side."""
        return self.n if self.beam is None else self.beam.width


def check_sampling(
    fields: GenerationFields,
    config: ApiConfig,
    defaults: GenerationDefaults,
    logprobs: int | None = None,
    form_param: str | None = None,
) -> CheckedSampling:
    """Checks everything that needs no vocabulary. form_param: the field that constrains the form of the output, if one
    does."""
    check_range("n", fields.n, 1, config.max_n)
    num_returned = 1 if fields.n is None else fields.n
    n = _check_best_of(fields, num_returned, config)
    # Choice i samples with seed + i, which must be an int64 too.
    check_range("seed", fields.seed, -INT64_MAX - 1, INT64_MAX - (n - 1))
    by_name = _check_by_name(fields, defaults)
    logit_bias = _check_logit_bias(fields.logit_bias or {})
    bad_words = _check_bad_words(fields.bad_words or [], config)
    allowed_token_ids = _check_allowed(fields.allowed_token_ids)
    beam = check_beams(fields, logprobs, form_param, config)
    if beam is not None:
        by_name = {"temperature": 0.0}
    if fields.deterministic and not config.exact_swap:
        raise InvalidRequest(
            "deterministic is not supported: this server rounds the KV blocks of preempted requests "
            "(--swap-compression fp8).",
            param="deterministic",
        )
    num_logprobs = 0 if logprobs is None and n > num_returned else logprobs  # which the best choices are chosen by
    return CheckedSampling(
        n=n,
        num_returned=num_returned,
        seed=fields.seed,
        by_name=by_name,
        logit_bias=logit_bias,
        bad_words=bad_words,
        allowed_token_ids=allowed_token_ids,
        num_logprobs=num_logprobs,
        logprob_token_ids=tuple(fields.logprob_token_ids or ()),
        beam=beam,
        deterministic=config.deterministic or bool(fields.deterministic),
    )


def sampling_maker(
    sampling: CheckedSampling, model: ServedModel, stop_token_ids: frozenset[int], num_prompt_logprobs: int | None
) -> Callable[[int], SamplingParams]:
    """Makes a prompt's parameters, given its max_tokens; each prompt has its own seed.

    Refuses ids outside the vocabulary, determinism where the model is not served so, and rules that could forbid every
    token. Any thread: bad words are tokenized here.
    """
    if sampling.deterministic and not model.takes_deterministic:
        raise InvalidRequest(
            "deterministic is not supported: this server can compute this model deterministically only one token at a"
            " time, which slows down all requests. It does so if it is started with --deterministic.",
            param="deterministic",
        )
    check_token_ids([token_id for token_id, _ in sampling.logit_bias], model.vocab_size, "logit_bias")
    check_token_ids(sampling.allowed_token_ids or (), model.vocab_size, "allowed_token_ids")
    check_token_ids(sampling.logprob_token_ids, model.vocab_size, "logprob_token_ids")
    by_name = dict(sampling.by_name)
    if by_name.get("top_k", 0) >= model.vocab_size:
        by_name["top_k"] = 0
    bad_words = tuple(ids for word in sampling.bad_words for ids in _ids_of_bad_word(word, model))
    forbidden = {ids[-1] for ids in bad_words} | (stop_token_ids if by_name.get("min_tokens") else frozenset())
    _check_leaves_some(forbidden, sampling.allowed_token_ids, model)
    num_logprobs = sampling.num_logprobs
    if sampling.beam is not None:
        num_logprobs = num_top_logprobs(sampling.beam, stop_token_ids, model.vocab_size)

    def make(max_tokens: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            n=sampling.n,
            seed=random.getrandbits(62) if sampling.seed is None else sampling.seed,
            stop_token_ids=stop_token_ids,
            logit_bias=sampling.logit_bias,
            bad_words=bad_words,
            allowed_token_ids=sampling.allowed_token_ids,
            num_logprobs=num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
            logprob_token_ids=sampling.logprob_token_ids,
            beam=sampling.beam,
            deterministic=sampling.deterministic,
            **by_name,
        )

    return make


def _check_by_name(fields: SamplingFields, defaults: GenerationDefaults) -> dict[str, Any]:
    """The client's value, else the model's default; if there is neither, the engine's default applies."""
    by_name: dict[str, Any] = {}
    for name, bounds in _BOUNDS.items():
        value = getattr(fields, name)
        check_range(name, value, bounds["minimum"], bounds.get("maximum", INT64_MAX))
        if value is None:
            value = getattr(defaults, name, None)
        if value is not None:
            by_name[name] = value
    by_name["top_k"] = max(by_name["top_k"], 0)
    if by_name["temperature"] < _GREEDY_TEMPERATURE or by_name["top_p"] < _GREEDY_TOP_P:
        by_name |= _GREEDY
    return by_name


def _check_best_of(fields: GenerationFields, n: int, config: ApiConfig) -> int:
    """The number of choices to generate."""
    best_of = fields.best_of
    if best_of is None:
        return n
    check_range("best_of", best_of, 1, max(config.max_best_of, n))
    if best_of < n:
        raise InvalidRequest(f"best_of must be at least n ({n}), got {best_of}.", param="best_of")
    if best_of > 1 and fields.stream:
        raise InvalidRequest(
            "best_of above 1 cannot be combined with stream: the best choices are known only at the end.",
            param="best_of",
        )
    return best_of


def _check_leaves_some(
    forbidden: set[int] | frozenset[int], allowed: tuple[int, ...] | None, model: ServedModel
) -> None:
    if forbidden.issuperset(range(model.vocab_size) if allowed is None else allowed):
        param = "bad_words" if allowed is None else "allowed_token_ids"
        raise InvalidRequest(f"{param}: min_tokens and bad_words could forbid every token.", param=param)


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
    """The word at the beginning of a text and after a space, as in vLLM; spellings with ids outside the vocabulary are
    left out."""
    bare = word.lstrip()
    spellings = [tuple(model.tokenizer.encode(text, add_special_tokens=False)) for text in (bare, f" {bare}")]
    first, spaced = spellings
    if spaced and (len(spaced) != len(first) or spaced[0] == first[0]):
        spellings.pop()  # the space is a token of its own, so the first spelling covers it
    return [ids for ids in dict.fromkeys(spellings) if ids and max(ids) < model.vocab_size]
