"""Wire fields -> a checked call; nothing checks it again. A refusal names the field, and its limit if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from service.api.calls.output_form import check_output_form
from service.api.calls.sampling import CheckedSampling, check_sampling
from service.api.calls.token_checks import INT64_MAX, check_num_logprobs, check_range, quote
from service.api.calls.unsupported import check_extra_fields, extra_fields
from service.api.serving_state import GenerationDefaults
from service.config import ApiConfig
from service.core.adapter import Adapter, Adapters
from service.core.grammar import GrammarSpec
from service.errors import InvalidRequest, ModelNotFound, UnsupportedParameter
from service.protocol.generation import GenerationFields, StreamOptions
from service.text.stop_strings import StopRules

_MAX_PRIORITY = 1_000_000
_MAX_NAMES_TOLD = 24
_PRIORITY_OF_TIER = {"flex": -1, "auto": 0, "default": 0, "priority": 1}


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """What completions and chat have in common, checked.

    model: its name in the answer. adapter: the adapter of that name; None: the model itself.
    max_tokens: None if the client gave none.
    form: the constraint on the output; None: any text.
    logprobs: top log probabilities per generated token; None: not wanted. prompt_logprobs: the same for prompt tokens.
    truncate_prompt_tokens: how many of a prompt's tokens are kept; -1: as many as leave room for max_tokens.
    truncation_side: the side of the prompt that is cut off.
    answered_tier: the service tier in the answer; None if the client gave none.
    tokens_as_ids: tokens in log probabilities are shown by their ids.
    ignored: unknown fields, named in the answer's header.
    """

    model: str
    sampling: CheckedSampling
    max_tokens: int | None
    max_tokens_param: str
    stops: StopRules
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"]
    priority: int
    answered_tier: str | None
    cache_salt: str
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    tokens_as_ids: bool
    form: GrammarSpec | None
    ignored: tuple[str, ...]
    adapter: Adapter | None = None


def check_call(
    fields: GenerationFields,
    config: ApiConfig,
    defaults: GenerationDefaults,
    *,
    logprobs: int | None = None,
    least_max_tokens: int = 1,
    unknown: Sequence[str] = (),
    adapter: Adapter | None = None,
) -> CheckedCall:
    """Checks everything that needs neither the prompt nor the tokenizer.

    logprobs: in the endpoint's own spelling. unknown: unknown fields that the caller found deeper in the body.
    adapter: from `find_adapter`, which has checked the model's name.
    """
    ignored = _check_unknown(fields, config, unknown)
    options, stream = fields.stream_options, bool(fields.stream)
    if options is not None and not stream:
        raise InvalidRequest("stream_options is only allowed when stream is true.", param="stream_options")
    max_tokens_param = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(fields, max_tokens_param)
    check_range(max_tokens_param, max_tokens, least_max_tokens, INT64_MAX)
    prompt_logprobs = _check_prompt_fields(fields, config)
    form = check_output_form(fields, config)
    include_usage, continuous_usage = _usage_of_stream(options, config)
    return CheckedCall(
        model=config.served_model_names[0] if adapter is None else adapter.name,
        sampling=check_sampling(fields, config, defaults, logprobs, None if form is None else form.param),
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        stops=StopRules(
            _check_stops(fields.stop, config),
            frozenset(fields.stop_token_ids or ()),
            bool(fields.include_stop_str_in_output or fields.no_stop_trim),
            fields.min_tokens or 0,
        ),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=fields.skip_special_tokens is not False,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        truncation_side=fields.truncation_side or "left",
        priority=_check_priority(fields, defaults),
        answered_tier=_answered_tier(fields.service_tier),
        cache_salt=check_cache_salt(fields.cache_salt, config),
        ignore_eos=bool(fields.ignore_eos),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        return_token_ids=bool(fields.return_token_ids),
        tokens_as_ids=config.tokens_as_ids or bool(fields.return_tokens_as_token_ids),
        form=form,
        ignored=ignored,
        adapter=adapter,
    )


def check_name(name: str, adapters: Adapters | None, config: ApiConfig) -> None:
    """ModelNotFound, which lists the names there are, if this is neither the model's nor an adapter's."""
    if not is_model_name(name, config) and (adapters is None or adapters.folder_name(name) is None):
        raise _model_not_found(name, adapters, config)


async def find_adapter(name: str | None, adapters: Adapters | None, config: ApiConfig) -> Adapter | None:
    """The adapter that a call asks for by the name of its model, read if need be; None: it asks for the model itself.
    Raises ModelNotFound, as `check_name`, and AdapterError."""
    if name is None or is_model_name(name, config):
        return None
    adapter = None if adapters is None else await adapters.get(name)
    if adapter is None:
        raise _model_not_found(name, adapters, config)
    return adapter


def is_model_name(name: str, config: ApiConfig) -> bool:
    """Whether it is a name of the model itself, rather than of an adapter or of nothing."""
    return name in config.served_model_names or name in config.model_aliases


def _model_not_found(name: str, adapters: Adapters | None, config: ApiConfig) -> ModelNotFound:
    names = [*config.served_model_names, *({} if adapters is None else adapters.served())]
    there_is = ", ".join(map(quote, names[:_MAX_NAMES_TOLD]))
    if (num_more := len(names) - _MAX_NAMES_TOLD) > 0:
        there_is += f" and {num_more} more (GET /v1/models)"
    return ModelNotFound(f"The model {quote(name)} does not exist; this server has {there_is}.", param="model")


def ignored_fields(unknown: Sequence[str], config: ApiConfig) -> tuple[str, ...]:
    """The names of unknown fields, to be shown to the client; in strict mode the first one is refused."""
    if unknown and config.strict_params:
        raise InvalidRequest(f"Unknown field {quote(unknown[0])}.", param=unknown[0][:64], code="unknown_parameter")
    return tuple(unknown)


def _usage_of_stream(options: StreamOptions | None, config: ApiConfig) -> tuple[bool, bool]:
    """Whether a stream has its usage, and whether in every chunk. If the server forces usage on a client that did not
    ask, it is in every chunk, as in vLLM."""
    if options is None:
        return config.force_usage, config.force_usage
    include_usage = config.force_usage or bool(options.include_usage)
    return include_usage, include_usage and bool(options.continuous_usage_stats)


def _check_prompt_fields(fields: GenerationFields, config: ApiConfig) -> int | None:
    """The number of top log probabilities per prompt token; None: none are wanted."""
    prompt_logprobs = check_num_logprobs("prompt_logprobs", fields.prompt_logprobs, config.max_logprobs)
    if prompt_logprobs is not None and fields.stream:
        raise InvalidRequest("prompt_logprobs cannot be combined with stream.", param="prompt_logprobs")
    if fields.truncate_prompt_tokens != -1:
        check_range("truncate_prompt_tokens", fields.truncate_prompt_tokens, 1, INT64_MAX)
    return prompt_logprobs


def _check_unknown(fields: GenerationFields, config: ApiConfig, deeper: Sequence[str]) -> tuple[str, ...]:
    unknown = check_extra_fields(fields.model_extra or {}) + tuple(deeper)
    if fields.stream_options is not None:
        unknown += extra_fields("stream_options", fields.stream_options)
    if (format_ := fields.response_format) is not None:
        unknown += extra_fields("response_format", format_)
        if format_.json_schema is not None:
            unknown += extra_fields("response_format.json_schema", format_.json_schema)
    return ignored_fields(unknown, config)


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
    """The request's priority, higher first: its own, else that of its tier."""
    of_tier = _PRIORITY_OF_TIER.get(fields.service_tier or "auto", 0)
    if not defaults.heeds_priority:
        for name, asked in (("priority", fields.priority), ("service_tier", of_tier)):
            if asked:
                raise UnsupportedParameter(
                    f"{name} is not supported: this server does not schedule by priority (--scheduling-policy).",
                    param=name,
                )
    check_range("priority", fields.priority, -_MAX_PRIORITY, _MAX_PRIORITY)
    if fields.priority is None:
        return of_tier
    return -fields.priority if defaults.lower_priority_first else fields.priority


def _answered_tier(asked: str | None) -> str | None:
    return None if asked is None else asked.replace("auto", "default")


def check_cache_salt(salt: str | None, config: ApiConfig) -> str:
    if salt is None:
        return ""
    if not salt or len(salt.encode()) > config.max_cache_salt_bytes:
        raise InvalidRequest(f"cache_salt must have 1 to {config.max_cache_salt_bytes} bytes.", param="cache_salt")
    return salt
