"""Wire fields -> validated call; nothing behind it checks again. A refusal names the field, and its limit if any."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from service.api.answers.choice_text import StopRules
from service.api.calls.beam_rules import check_beams
from service.api.calls.draw_rules import DrawRules, check_draw_rules
from service.api.calls.output_form import check_output_form
from service.api.calls.token_checks import INT64_MAX, check_range, quote
from service.api.calls.unsupported import check_extra_fields, extra_fields
from service.api.serving_state import GenerationDefaults
from service.config import ApiConfig
from service.core.grammar import GrammarSpec
from service.core.sampling_params import BeamParams
from service.errors import InvalidRequest, ModelNotFound, UnsupportedParameter
from service.protocol.generation import GenerationFields

_GREEDY_TEMPERATURE = 1e-5
"""Dividing logits by a smaller temperature only overflows; it means argmax."""
_GREEDY_TOP_P = 1e-6
"""The likeliest of fewer than a million tokens is a nucleus of this size by itself."""
_MAX_PRIORITY = 1_000_000
_MAX_NAMES_TOLD = 4
_PRIORITY_OF_TIER = {"flex": -1, "auto": 0, "default": 0, "priority": 1}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; `SamplingParams` without what depends on the prompt.

    seed: None when the client gave none. n: choices that are generated; num_returned: the best of them that are shown.
    """

    n: int
    num_returned: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None

    def seed_of_prompt(self) -> int:
        """The client's seed for each prompt, or a new one; with n - 1 added it is still an int64."""
        return random.getrandbits(62) if self.seed is None else self.seed


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """What completions and chat have in common, checked.

    model: its name in the answer. max_tokens: None when the client gave none.
    form: what the output must be; None: any text. beam: the choices are the best beams instead of draws.
    logprobs: of generated tokens, and how many of the most probable ones; None: not wanted. prompt_logprobs: likewise.
    truncate_prompt_tokens: how many of a prompt's last tokens are kept; -1: as many as leave room for max_tokens.
    ignored: unknown fields, to be named in the answer's header.
    """

    model: str
    sampling: Sampling
    max_tokens: int | None
    max_tokens_param: str
    stops: StopRules
    rules: DrawRules
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool
    truncate_prompt_tokens: int | None
    priority: int
    service_tier: str | None
    cache_salt: str
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    form: GrammarSpec | None
    beam: BeamParams | None
    ignored: tuple[str, ...]


def check_call(
    fields: GenerationFields,
    config: ApiConfig,
    defaults: GenerationDefaults,
    *,
    logprobs: int | None = None,
    least_max_tokens: int = 1,
    unknown: Sequence[str] = (),
) -> CheckedCall:
    """Check everything that needs neither the prompt nor the tokenizer.

    logprobs: of the endpoint's own spelling. unknown: unknown fields that the caller found deeper in the body.
    """
    check_model(fields.model, config)
    ignored = _check_unknown(fields, config, unknown)
    options, stream = fields.stream_options, bool(fields.stream)
    if options is not None and not stream:
        raise InvalidRequest("stream_options is only allowed when stream is true.", param="stream_options")
    max_tokens_param = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(fields, max_tokens_param)
    check_range(max_tokens_param, max_tokens, least_max_tokens, INT64_MAX)
    _check_prompt_fields(fields, config)
    form = check_output_form(fields, config)
    return CheckedCall(
        model=config.served_model_names[0],
        sampling=_check_sampling(fields, config, defaults),
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        stops=StopRules(
            _check_stops(fields.stop, config),
            frozenset(fields.stop_token_ids or ()),
            bool(fields.include_stop_str_in_output),
            fields.min_tokens or 0,
        ),
        rules=check_draw_rules(fields, config, defaults),
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        skip_special_tokens=fields.skip_special_tokens is not False,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        priority=_check_priority(fields, defaults),
        service_tier=fields.service_tier,
        cache_salt=_check_cache_salt(fields.cache_salt, config),
        ignore_eos=bool(fields.ignore_eos),
        stream=stream,
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.continuous_usage_stats),
        return_token_ids=bool(fields.return_token_ids),
        form=form,
        beam=check_beams(fields, logprobs, None if form is None else form.param, config),
        ignored=ignored,
    )


def check_model(name: str, config: ApiConfig) -> None:
    """ModelNotFound, which says what there is, if no model is served under this name."""
    if name not in config.served_model_names:
        there_is = ", ".join(quote(each) for each in config.served_model_names[:_MAX_NAMES_TOLD])
        raise ModelNotFound(f"The model {quote(name)} does not exist; this server has {there_is}.", param="model")


def ignored_fields(unknown: Sequence[str], config: ApiConfig) -> tuple[str, ...]:
    """The names of fields that nobody knows, to be told to the client; in strict mode the first one is refused."""
    if unknown and config.strict_params:
        raise InvalidRequest(f"Unknown field {quote(unknown[0])}.", param=unknown[0][:64], code="unknown_parameter")
    return tuple(unknown)


class _Tier(TypedDict, total=False):
    service_tier: str


def tier_of(call: CheckedCall) -> _Tier:
    """The answer says the tier that it was served at, if the client spoke of one."""
    return {} if call.service_tier is None else {"service_tier": call.service_tier.replace("auto", "default")}


def _check_prompt_fields(fields: GenerationFields, config: ApiConfig) -> None:
    check_range("prompt_logprobs", fields.prompt_logprobs, 0, config.max_logprobs)
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequest("prompt_logprobs is not for streams.", param="prompt_logprobs")
    if fields.truncate_prompt_tokens != -1:
        check_range("truncate_prompt_tokens", fields.truncate_prompt_tokens, 1, INT64_MAX)


def _check_unknown(fields: GenerationFields, config: ApiConfig, deeper: Sequence[str]) -> tuple[str, ...]:
    unknown = check_extra_fields(fields.model_extra or {}) + tuple(deeper)
    if fields.stream_options is not None:
        unknown += extra_fields("stream_options", fields.stream_options)
    if (format_ := fields.response_format) is not None:
        unknown += extra_fields("response_format", format_)
        if format_.json_schema is not None:
            unknown += extra_fields("response_format.json_schema", format_.json_schema)
    return ignored_fields(unknown, config)


def _check_sampling(fields: GenerationFields, config: ApiConfig, defaults: GenerationDefaults) -> Sampling:
    check_range("n", fields.n, 1, config.max_n)
    check_range("temperature", fields.temperature, 0, 2)
    check_range("top_p", fields.top_p, 0, 1)
    check_range("top_k", fields.top_k, -1, INT64_MAX)
    num_returned = 1 if fields.n is None else fields.n
    n = _check_best_of(fields, num_returned, config)
    # Choice i draws with seed + i, and that must be an int64 too.
    check_range("seed", fields.seed, -INT64_MAX - 1, INT64_MAX - (n - 1))
    temperature = defaults.temperature if fields.temperature is None else fields.temperature
    top_p = defaults.top_p if fields.top_p is None else fields.top_p
    top_k = defaults.top_k if fields.top_k is None else fields.top_k
    greedy = temperature < _GREEDY_TEMPERATURE or top_p < _GREEDY_TOP_P
    return Sampling(
        n=n,
        num_returned=num_returned,
        temperature=0.0 if greedy else temperature,
        top_p=1.0 if greedy else top_p,
        top_k=0 if greedy else max(top_k, 0),
        seed=fields.seed,
    )


def _check_best_of(fields: GenerationFields, n: int, config: ApiConfig) -> int:
    """How many choices to generate."""
    best_of = fields.best_of
    if best_of is None:
        return n
    check_range("best_of", best_of, 1, max(config.max_best_of, n))
    if best_of < n:
        raise InvalidRequest(f"best_of is {best_of}; it must not be less than n, which is {n}.", param="best_of")
    if best_of > 1 and fields.stream:
        raise InvalidRequest("best_of is not for streams: the best is known when all are done.", param="best_of")
    return best_of


def _check_stops(stop: str | list[str] | None, config: ApiConfig) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > config.max_stops:
        raise InvalidRequest(f"stop may hold at most {config.max_stops} strings.", param="stop")
    if not all(stops):
        raise InvalidRequest("stop may not hold an empty string.", param="stop")
    if any(len(text.encode()) > config.max_stop_bytes for text in stops):
        raise InvalidRequest(f"stop: each string may have at most {config.max_stop_bytes} bytes.", param="stop")
    return stops


def _check_priority(fields: GenerationFields, defaults: GenerationDefaults) -> int:
    """The request's priority: what it says itself, else what its tier stands for."""
    of_tier = _PRIORITY_OF_TIER.get(fields.service_tier or "auto", 0)
    if not defaults.heeds_priority:
        for name, asked in (("priority", fields.priority), ("service_tier", of_tier)):
            if asked:
                raise UnsupportedParameter(f"{name} means nothing to this server's scheduling policy.", param=name)
    check_range("priority", fields.priority, -_MAX_PRIORITY, _MAX_PRIORITY)
    return of_tier if fields.priority is None else fields.priority


def _check_cache_salt(salt: str | None, config: ApiConfig) -> str:
    if salt is None:
        return ""
    if not salt or len(salt.encode()) > config.max_cache_salt_bytes:
        raise InvalidRequest(f"cache_salt must have 1 to {config.max_cache_salt_bytes} bytes.", param="cache_salt")
    return salt
