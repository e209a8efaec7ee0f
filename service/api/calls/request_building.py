"""Checked call + prompt ids -> engine requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.api.calls.beam_rules import beam_sampling
from service.api.calls.draw_rules import SamplingFields, sampling_fields
from service.api.calls.logprob_budget import logprob_room
from service.api.calls.token_budget import kv_room, max_tokens_for
from service.api.calls.token_checks import check_token_ids
from service.api.calls.validation import CheckedCall
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.core.grammar import Grammar
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class CallHead:
    """What a call is known by: call_id and created (Unix seconds) in its answer, when it came (seconds on the engine's
    clock), and the name of its API key."""

    call_id: str
    created: int
    arrival_s: float
    client: str


@dataclass(frozen=True, slots=True)
class CallPrompts:
    """The ids of each of a call's prompts.

    param: the field that they come from, to be named in refusals. default_max_tokens: for a call that says nothing;
    None: the rest of the context. num_logprobs: what the answer needs of the prompts' tokens; num_told: how many times
    it tells them.
    """

    token_ids: Sequence[Sequence[int]]
    param: str
    default_max_tokens: int | None = None
    num_logprobs: int | None = None
    num_told: int = 1


def build_requests(
    call: CheckedCall,
    prompts: CallPrompts,
    model: ServedModel,
    head: CallHead,
    *,
    grammar: Grammar | None,
    config: ApiConfig,
) -> list[Request]:
    """One engine request per prompt; ContextLengthExceeded if one does not fit.

    Any thread: bad words are tokenized here.
    """
    if grammar is not None:
        _check_beside_grammar(call)
    check_token_ids(list(call.stops.token_ids), model.vocab_size, "stop_token_ids")
    stop_token_ids = call.stops.token_ids | (frozenset() if call.ignore_eos else model.eos_token_ids)
    snapshot = model.engine.snapshot
    rules = sampling_fields(call.rules, model, stop_token_ids)
    if call.sampling.temperature == 0:
        rules["min_p"] = 0.0  # means nothing to the most probable token
    room = logprob_room(call, prompts.token_ids, prompts.num_logprobs, prompts.num_told, config.max_logprob_entries)
    num_choices = call.sampling.n if call.beam is None else call.beam.width
    cache_salt = _cache_salt(call.cache_salt, head.client, config)
    requests = []
    for index, prompt in enumerate(prompts.token_ids):
        max_tokens = max_tokens_for(
            num_prompt_tokens=len(prompt),
            asked=call.max_tokens,
            default=prompts.default_max_tokens,
            max_model_len=model.max_model_len,
            room=min(room, kv_room(snapshot, len(prompt), num_choices)),
            prompt_param=prompts.param,
            param=call.max_tokens_param,
        )
        sampling = _sampling_params(call, model, rules, stop_token_ids, max_tokens, prompts.num_logprobs)
        request_id, ids = f"{head.call_id}-{index}", tuple(prompt)
        requests.append(
            Request(request_id, ids, sampling, head.arrival_s, cache_salt, call.priority, head.client, grammar)
        )
    return requests


def _cache_salt(salt: str, client: str, config: ApiConfig) -> str:
    """What keeps cached prefixes apart: the client's own salt, and by default whose API key it is. Else `cached_tokens`
    and the time to the first token would tell one client what another has asked."""
    if config.prefix_cache_scope == "all":
        return salt
    return f"{len(client)}:{client}{salt}"  # with the length, so that no client and salt look like another's


def _sampling_params(
    call: CheckedCall,
    model: ServedModel,
    rules: SamplingFields,
    stop_token_ids: frozenset[int],
    max_tokens: int,
    num_prompt_logprobs: int | None,
) -> SamplingParams:
    """The parameters of one prompt; each prompt has a seed of its own."""
    if call.beam is not None:
        return beam_sampling(
            call.beam,
            n=call.sampling.n,
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            vocab_size=model.vocab_size,
            num_prompt_logprobs=num_prompt_logprobs,
        )
    num_logprobs = call.logprobs
    if num_logprobs is None and call.sampling.n > call.sampling.num_returned:
        num_logprobs = 0  # the best choices are found by them
    return SamplingParams(
        max_tokens=max_tokens,
        n=call.sampling.n,
        temperature=call.sampling.temperature,
        top_p=call.sampling.top_p,
        top_k=call.sampling.top_k if call.sampling.top_k < model.vocab_size else 0,
        seed=call.sampling.seed_of_prompt(),
        stop_token_ids=stop_token_ids,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        **rules,
    )


def _check_beside_grammar(call: CheckedCall) -> None:
    """A form that the client asked for, or calls that it wants to be made, leave no room for these."""
    if call.rules.min_tokens:
        raise InvalidRequest("min_tokens: the form of the output says where it may end.", param="min_tokens")
    if call.beam is not None:
        raise InvalidRequest("use_beam_search: beams cannot be held to a form.", param="use_beam_search")


def truncated(token_ids: list[int], call: CheckedCall, model: ServedModel) -> list[int]:
    """The prompt as `truncate_prompt_tokens` leaves it: its end."""
    keep = call.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep > model.max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens may be at most {model.max_model_len}.", param="truncate_prompt_tokens"
        )
    if keep == -1:
        keep = max(1, model.max_model_len - (1 if call.max_tokens is None else call.max_tokens))
    return token_ids[-keep:]
