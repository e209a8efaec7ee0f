"""The fields of a text completion -> a prepared call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.types import Receive

from service.api.call_head import CallHead
from service.api.calls.output_form import compile_form
from service.api.calls.prepared_call import CallPrompts, PreparedCall
from service.api.calls.prompt_ids import (
    PromptBound,
    Prompts,
    as_prompts,
    checked_by,
    empty_prompt,
    prompt_token_ids,
    truncated,
    undivided,
)
from service.api.calls.thinking_budget import check_thinking_budget
from service.api.calls.token_checks import check_asked_tokens, check_num_logprobs, check_token_ids
from service.api.calls.validation import CheckedCall, check_call, find_adapter
from service.api.context import ApiContext
from service.api.serving_state import GenerationDefaults, ServedModel
from service.config import ApiConfig
from service.core.adapter import Adapter
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.completions import CompletionRequest
from service.text.infill import Infill, infill_of
from service.text.long_text import UndividedTextTooLong

_DEFAULT_MAX_TOKENS = 16
_IDS_A_CHARACTER = 16
"""How many ids are checked in the time that one character takes to tokenize."""


async def prepare_completion(
    fields: CompletionRequest, head: CallHead, receive: Receive, model: ServedModel, context: ApiContext
) -> PreparedCall:
    """Refuses, by name, whatever can be refused before the engine is asked. receive: of the request, whose body has
    been read."""
    infill = _check_suffix(fields, model)
    adapter = await find_adapter(fields.model, model.adapters, context.config)
    call = _check(fields, context.config, model.defaults, adapter)
    if infill is not None and not call.ignore_eos:
        call = replace(call, stops=replace(call.stops, token_ids=call.stops.token_ids | infill.end_ids))
    prompts = _check_prompts(fields, context.config)
    limit = check_thinking_budget(fields, model)
    model.engine.check_accepts(len(prompts))
    prompt_ids = await _prompt_ids(prompts, fields, call, receive, model, context, infill)
    to_submit = CallPrompts(
        prompt_ids,
        "prompt",
        _DEFAULT_MAX_TOKENS,
        _num_prompt_logprobs(call, bool(fields.echo)),
        call.sampling.num_returned,  # each choice repeats the prompt's
        await _echoes(prompts, prompt_ids, call, model, context) if fields.echo else None,
    )
    return PreparedCall(head, model, call, to_submit, await compile_form(call.form, model), limit)


async def _prompt_ids(
    prompts: Prompts,
    fields: CompletionRequest,
    call: CheckedCall,
    receive: Receive,
    model: ServedModel,
    context: ApiContext,
    infill: Infill | None,
) -> list[list[int]]:
    """Ids of each prompt. Text is tokenized, by default with special tokens; ids are taken as they are. With a suffix,
    the ids of a fill-in-the-middle prompt."""
    special = fields.add_special_tokens is not False
    bound = PromptBound(model, "prompt", must_fit=call.truncate_prompt_tokens is None)
    suffix = fields.suffix or ""
    bound.check_characters(max((len(p) for p in prompts if isinstance(p, str)), default=0) + len(suffix))
    num_characters = sum(len(p) if isinstance(p, str) else len(p) // _IDS_A_CHARACTER for p in prompts)

    def encoded(check_cancelled: Callable[[], None]) -> list[list[int]]:
        if infill is None:
            return [prompt_token_ids(prompt, bound, special, check_cancelled) for prompt in prompts]
        check = checked_by(bound, check_cancelled)
        return [_filled(str(prompt), suffix, infill, bound, special, check) for prompt in prompts]

    ids = await context.texts.run_prompt(receive, num_characters + len(suffix) * len(prompts), encoded)
    return [truncated(each, call, model) for each in ids]


async def _echoes(
    prompts: Prompts, prompt_ids: Sequence[list[int]], call: CheckedCall, model: ServedModel, context: ApiContext
) -> list[str]:
    """The text of each prompt; for a prompt that may be truncated, the text that is left."""
    is_whole = call.truncate_prompt_tokens is None

    def texts() -> list[str]:
        return [
            prompt if isinstance(prompt, str) and is_whole else model.tokenizer.decode(ids)
            for prompt, ids in zip(prompts, prompt_ids, strict=True)
        ]

    return await context.texts.run(sum(map(len, prompt_ids)), texts)


def _check(
    fields: CompletionRequest, config: ApiConfig, defaults: GenerationDefaults, adapter: Adapter | None
) -> CheckedCall:
    logprobs = check_num_logprobs("logprobs", fields.logprobs, config.max_logprobs)
    logprobs = check_asked_tokens(fields.logprob_token_ids, logprobs, "logprobs")
    if fields.logprob_token_ids and fields.echo:
        raise InvalidRequest(
            "logprob_token_ids cannot be combined with echo: it is for generated tokens only.", param="echo"
        )
    least = 0 if fields.echo or fields.prompt_logprobs is not None else 1
    return check_call(fields, config, defaults, logprobs=logprobs, least_max_tokens=least, adapter=adapter)


def _num_prompt_logprobs(call: CheckedCall, echo: bool) -> int | None:
    asked = [call.prompt_logprobs, call.logprobs if echo else None]
    return max((num for num in asked if num is not None), default=None)


def _check_prompts(fields: CompletionRequest, config: ApiConfig) -> list[str | list[int]]:
    """The prompts of a call, each text or ids. None is empty, and they do not make too many sequences."""
    prompts = as_prompts(fields.prompt)
    if not all(prompts) and not fields.suffix:
        raise empty_prompt("prompt")
    each, param = max((getattr(fields, name) or 1, name) for name in ("n", "best_of", "beam_width"))
    if len(prompts) * each > config.max_sequences_per_call:
        raise InvalidRequest(
            f"{len(prompts)} prompts with {param} {each} are {len(prompts) * each} sequences; a call may have at most "
            f"{config.max_sequences_per_call}.",
            param=param,
        )
    return prompts


def _check_suffix(fields: CompletionRequest, model: ServedModel) -> Infill | None:
    """How a fill-in-the-middle prompt is written for this model; None without a suffix."""
    if not fields.suffix:
        return None
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(fields, name):
            raise InvalidRequest(f"suffix cannot be combined with {name}.", param="suffix")
    if not all(isinstance(prompt, str) for prompt in as_prompts(fields.prompt)):
        raise InvalidRequest("suffix: the prompt must be text, not token ids.", param="suffix")
    infill = infill_of(model.tokenizer)
    if infill is None:
        raise UnsupportedParameter(
            "suffix is not supported: this model's tokenizer has no fill-in-the-middle tokens.", param="suffix"
        )
    return infill


def _filled(
    prefix: str, suffix: str, infill: Infill, bound: PromptBound, special: bool, check: Callable[[int], None]
) -> list[int]:
    try:
        ids = infill.encode(prefix, suffix, add_special_tokens=special, check=check)
    except UndividedTextTooLong as error:
        raise undivided(error, bound) from error
    check_token_ids(ids, bound.model.vocab_size, "prompt")
    return ids
