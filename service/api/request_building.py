"""Checked call + prompt ids -> engine requests."""

from __future__ import annotations

from collections.abc import Sequence

from service.api.serving_state import ServedModel
from service.api.token_budget import kv_room, max_tokens_for
from service.api.validation import CheckedCall, check_token_ids
from service.core.grammar import Grammar
from service.core.request import Request
from service.core.sampling_params import SamplingParams


def build_requests(
    call: CheckedCall,
    prompts: Sequence[Sequence[int]],
    model: ServedModel,
    *,
    call_id: str,
    arrival_s: float,
    prompt_param: str,
    default_max_tokens: int | None,
    client: str,
    grammar: Grammar | None = None,
) -> list[Request]:
    """One engine request per prompt; ContextLengthExceeded if one does not fit."""
    check_token_ids(list(call.stops.token_ids), model.vocab_size, "stop_token_ids")
    stop_token_ids = call.stops.token_ids | (frozenset() if call.ignore_eos else model.eos_token_ids)
    snapshot = model.engine.snapshot
    requests = []
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(
            max_tokens=max_tokens_for(
                num_prompt_tokens=len(prompt),
                asked=call.max_tokens,
                default=default_max_tokens,
                max_model_len=model.max_model_len,
                kv_room=kv_room(snapshot, len(prompt), call.sampling.n),
                prompt_param=prompt_param,
                param=call.max_tokens_param,
            ),
            n=call.sampling.n,
            temperature=call.sampling.temperature,
            top_p=call.sampling.top_p,
            top_k=call.sampling.top_k if call.sampling.top_k < model.vocab_size else 0,
            seed=call.sampling.seed_of_prompt(),
            stop_token_ids=stop_token_ids,
        )
        requests.append(
            Request(
                f"{call_id}-{index}",
                tuple(prompt),
                sampling,
                arrival_s,
                call.cache_salt,
                call.priority,
                client,
                grammar,
            )
        )
    return requests
