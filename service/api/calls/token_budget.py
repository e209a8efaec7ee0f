"""How many tokens a call may generate: by max_tokens, the prompt and the context, and by its log probabilities, which
take some 100 bytes each until the answer is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from service.api.calls.validation import CheckedCall
from service.core.adapter import Adapter
from service.core.stats import EngineSnapshot
from service.errors import ContextLengthExceeded, InvalidRequest


def kv_room(snapshot: EngineSnapshot, num_prompt_tokens: int, n: int, adapter: Adapter | None = None) -> int:
    """Tokens that each of n choices can generate if the request, with its adapter, has the whole KV cache to itself; at
    least 1.

    The choices share the prompt's full blocks, and a last token is never cached. Blocks that several choices free
    behind a sliding window are not counted.
    """
    of_adapter = 0 if adapter is None else adapter.num_blocks
    if n == 1:
        if snapshot.longest_sequence is None:
            return sys.maxsize
        return max(1, snapshot.longest_sequence - of_adapter * snapshot.block_size - num_prompt_tokens + 1)
    shared = num_prompt_tokens // snapshot.block_size
    num_units = (snapshot.total_blocks - of_adapter) // snapshot.num_layer_groups
    units_per_choice = shared + (num_units - shared) // n
    return max(1, units_per_choice * snapshot.block_size - num_prompt_tokens + 1)


def max_tokens_for(
    *,
    num_prompt_tokens: int,
    asked: int | None,
    min_tokens: int,
    default: int | None,
    max_model_len: int,
    room: int,
    prompt_param: str,
    param: str,
) -> int:
    """The maximum number of tokens to generate.

    asked: what the client wrote; with the prompt it must fit the context, or ContextLengthExceeded with both numbers.
    default: used if the client wrote nothing, cut to the context and to `room`; None: the rest of the context.
    A prompt with `asked` 0 may fill the context.
    InvalidRequest if `min_tokens` exceeds what is returned, since it could not be kept.
    """
    rest = max_model_len - num_prompt_tokens
    if rest < (0 if asked == 0 else 1):
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has {num_prompt_tokens} "
            "tokens. Please shorten it.",
            param=prompt_param,
        )
    if asked is not None and asked > rest:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens, but {num_prompt_tokens + asked} were "
            f"requested ({num_prompt_tokens} in the prompt, {asked} in {param}).",
            param=param,
        )
    max_tokens = min(rest, room, rest if default is None else default) if asked is None else asked
    if min_tokens > max_tokens:
        limit = f"{max_tokens}, as the request gives none" if asked is None else f"{max_tokens}"
        raise InvalidRequest(f"min_tokens must be at most {param} ({limit}), got {min_tokens}.", param="min_tokens")
    return max_tokens


def logprob_room(
    call: CheckedCall, prompts: Sequence[Sequence[int]], num_prompt_logprobs: int | None, num_told: int, most: int
) -> int:
    """Tokens that each choice may generate so that the call has at most `most` log probabilities, with those of its
    prompts.

    A token has its own and the top ones. num_told: how many times the answer repeats those of each prompt.
    InvalidRequest with the numbers if the prompts, or `max_tokens` as the client wrote it, need more.
    """
    of_prompts = 0 if num_prompt_logprobs is None else sum(map(len, prompts)) * (num_prompt_logprobs + 1) * num_told
    if of_prompts > most:
        param = "logprobs" if call.prompt_logprobs is None else "prompt_logprobs"
        raise InvalidRequest(
            f"{param}: the prompts need {of_prompts} log probabilities; a call may have at most {most}.", param=param
        )
    if call.logprobs is None:
        return most
    a_token = len(prompts) * call.sampling.n * (call.logprobs + 1)
    if call.max_tokens is not None and of_prompts + call.max_tokens * a_token > most:
        raise InvalidRequest(
            f"logprobs: {call.max_tokens_param} {call.max_tokens} needs up to {of_prompts + call.max_tokens * a_token} "
            f"log probabilities; a call may have at most {most}.",
            param="logprobs",
        )
    return max(1, (most - of_prompts) // a_token)
