"""How many log probabilities one call may bring: each takes some 100 bytes until the answer is written."""

from __future__ import annotations

from collections.abc import Sequence

from service.api.calls.validation import CheckedCall
from service.errors import InvalidRequest


def logprob_room(
    call: CheckedCall, prompts: Sequence[Sequence[int]], num_prompt_logprobs: int | None, num_told: int, most: int
) -> int:
    """Tokens that each choice may have so that the call's entries, its prompts' included, are at most `most`.

    A token's entries are its own and the top ones. num_told: how many times the answer tells those of each prompt.
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
