"""A call that is ready to be submitted. Every wire form is converted to it, and the answer is made from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.api.call_head import CallHead
from service.api.calls.output_form import CompiledForm
from service.api.calls.sampling import sampling_maker
from service.api.calls.thinking_budget import ThinkingLimit, check_beside_budget
from service.api.calls.token_budget import kv_room, logprob_room, max_tokens_for
from service.api.calls.token_checks import check_token_ids
from service.api.calls.validation import CheckedCall
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.core.request import Request
from service.errors import InvalidRequest
from service.text.chat_output import ChatOutput
from service.text.tool_calls import ToolStyle


@dataclass(frozen=True, slots=True)
class CallPrompts:
    """The ids of each of a call's prompts.

    param: the field that they come from, named in refusals. default_max_tokens: used if the call gives none; None: the
        rest of the context.
    num_logprobs: top log probabilities per prompt token that the answer needs; num_told: how many times it repeats
        them.
    echoes: the text of each prompt, to stand before its completions; None if it is not wanted.
    """

    token_ids: Sequence[Sequence[int]]
    param: str
    default_max_tokens: int | None = None
    num_logprobs: int | None = None
    num_told: int = 1
    echoes: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """checked: its fields. form: the grammar of its output. thinking: the limit on reasoning tokens; None: no limit.

    make_output: makes the reader that separates a chat choice's reasoning and calls from content; None if it can only
        be content.
    tool_style: how the model writes calls; None if it is not asked to make any.
    """

    head: CallHead
    model: ServedModel
    checked: CheckedCall
    prompts: CallPrompts
    form: CompiledForm
    thinking: ThinkingLimit | None = None
    make_output: Callable[[], ChatOutput] | None = None
    tool_style: ToolStyle | None = None


def build_requests(call: PreparedCall, config: ApiConfig) -> list[Request]:
    """One engine request per prompt; ContextLengthExceeded if one does not fit.

    Any thread: bad words are tokenized here.
    """
    checked, prompts, model, head = call.checked, call.prompts, call.model, call.head
    if call.form.grammar is not None:
        _check_beside_grammar(checked)
    check_token_ids(list(checked.stops.token_ids), model.vocab_size, "stop_token_ids")
    stop_token_ids = checked.stops.token_ids | (frozenset() if checked.ignore_eos else model.eos_token_ids)
    if call.thinking is not None:
        check_beside_budget(call.thinking, checked.sampling, stop_token_ids)
    make_sampling = sampling_maker(checked.sampling, model, stop_token_ids, prompts.num_logprobs)
    room = logprob_room(checked, prompts.token_ids, prompts.num_logprobs, prompts.num_told, config.max_logprob_entries)
    snapshot = model.engine.snapshot
    cache_salt = scoped_salt(checked.cache_salt, head.client, config)
    requests = []
    for index, prompt in enumerate(prompts.token_ids):
        max_tokens = max_tokens_for(
            num_prompt_tokens=len(prompt),
            asked=checked.max_tokens,
            min_tokens=checked.stops.min_tokens,
            default=prompts.default_max_tokens,
            max_model_len=model.max_model_len,
            room=min(room, kv_room(snapshot, len(prompt), checked.sampling.num_sequences, checked.adapter)),
            prompt_param=prompts.param,
            param=checked.max_tokens_param,
        )
        requests.append(
            Request(
                f"{head.call_id}-{index}",
                tuple(prompt),
                make_sampling(max_tokens),
                head.arrival_s,
                cache_salt,
                checked.priority,
                head.client,
                call.form.grammar if call.thinking is None else call.thinking.applied(call.form.grammar, prompt),
                checked.adapter,
                head.is_background,
                head.start_within_s,
            )
        )
    return requests


def scoped_salt(salt: str, client: str, config: ApiConfig) -> str:
    """The salt of the prefix cache: the client's own, and by default the name of its API key. Without it,
    `cached_tokens` and the time to the first token would tell one client what another has asked."""
    if config.prefix_cache_scope == "all" or not (client or salt):
        return salt
    return f"{len(client)}:{client}{salt}"  # with the length, so that no two pairs of client and salt are alike


def _check_beside_grammar(call: CheckedCall) -> None:
    """Refuses what cannot be combined with a grammar, be it for a form that was asked for or for required calls."""
    if call.stops.min_tokens:
        raise InvalidRequest(
            "min_tokens cannot be combined with a structured output or required tool calls: their form says where the "
            "output may end.",
            param="min_tokens",
        )
    if call.sampling.beam is not None:
        raise InvalidRequest(
            "use_beam_search cannot be combined with a structured output or required tool calls.",
            param="use_beam_search",
        )
