"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import abandon, answer_stream, answer_whole
from service.api.answers.chunk_frames import ChunkFrames
from service.api.answers.completion_texts import PLAIN_CONTENT, CompletionTexts
from service.api.answers.generation import Generation
from service.api.answers.submission import call_head, submit
from service.api.calls.json_body import read_json_object
from service.api.calls.member_limits import check_members
from service.api.calls.output_form import compile_form
from service.api.calls.prompt_bound import PromptBound
from service.api.calls.prompt_ids import text_ids
from service.api.calls.request_building import CallHead, CallPrompts, truncated
from service.api.calls.token_checks import check_range, check_token_ids
from service.api.calls.validation import CheckedCall, check_call
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.api.serving_state import GenerationDefaults, ServedModel
from service.config import ApiConfig
from service.errors import InvalidRequest
from service.protocol.completions import CompletionRequest

_DEFAULT_MAX_TOKENS = 16
_IDS_A_CHARACTER = 16
"""Ids that are checked in the time in which one character is tokenized."""
_NO_TEXT = "prompt must not be empty."


class Completions:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        model = self._context.state.check_ready()
        arrival_s = model.clock.now_s()
        body = await read_json_object(http, self._context.texts)
        check_members(body, self._context.config)
        fields = parse(CompletionRequest, body)
        call = _check(fields, self._context.config, model.defaults)
        prompts = _check_prompts(fields, self._context.config)
        model.engine.check_accepts(len(prompts))
        special = fields.add_special_tokens is not False
        prompt_ids = await self._prompt_ids(http, prompts, call, model, special)
        echo = bool(fields.echo)
        echoes = await self._echoes(prompts, prompt_ids, call, model) if echo else None
        head = call_head(self._context.ids, http, "cmpl", arrival_s)
        num_told = call.sampling.num_returned  # each choice has them
        to_submit = CallPrompts(prompt_ids, "prompt", _DEFAULT_MAX_TOKENS, _num_prompt_logprobs(call, echo), num_told)
        form = await compile_form(call.form, model)
        generation = await submit(self._context, model, call, to_submit, head, form)
        try:
            return await self._answered(http, generation, call, head, model, echoes)
        except BaseException:
            abandon(self._context, generation)
            raise

    async def _answered(
        self,
        http: Request,
        generation: Generation,
        call: CheckedCall,
        head: CallHead,
        model: ServedModel,
        echoes: Sequence[str] | None,
    ) -> Response:
        texts, fingerprint = CompletionTexts(call, generation, model.tokenizer, echoes), model.system_fingerprint
        if call.stream:
            chunks = ChunkFrames(b"text_completion", call, generation, head.call_id, head.created, fingerprint)
            frame = partial(texts.frame, chunks)
            num_logprobs = texts.num_logprobs if echoes is not None and call.logprobs is not None else None
            around_text = chunks.around_text(PLAIN_CONTENT)
            return answer_stream(
                self._context, generation, call.ignored, frame, chunks.usage, around_text, num_logprobs
            )
        answer = partial(texts.answer, head, fingerprint)
        return await answer_whole(http, self._context, generation, call.ignored, answer)

    async def _prompt_ids(
        self, http: Request, prompts: Sequence[str | list[int]], call: CheckedCall, model: ServedModel, special: bool
    ) -> list[list[int]]:
        """Ids of each prompt: text as the tokenizer does it, with `special` tokens added; ids as they are."""
        bound = PromptBound(model, "prompt", must_fit=call.truncate_prompt_tokens is None)
        bound.check_characters(max((len(p) for p in prompts if isinstance(p, str)), default=0))
        num_characters = sum(len(p) if isinstance(p, str) else len(p) // _IDS_A_CHARACTER for p in prompts)
        ids = await self._context.texts.run_prompt(
            http.receive, num_characters, lambda go_on: [_encode(p, bound, special, go_on) for p in prompts]
        )
        return [truncated(each, call, model) for each in ids]

    async def _echoes(
        self, prompts: Sequence[str | list[int]], prompt_ids: Sequence[list[int]], call: CheckedCall, model: ServedModel
    ) -> list[str]:
        """The text of each prompt, to stand before its completions; of one that may be cut, what is left of it."""
        is_whole = call.truncate_prompt_tokens is None

        def texts() -> list[str]:
            return [
                prompt if isinstance(prompt, str) and is_whole else model.tokenizer.decode(ids)
                for prompt, ids in zip(prompts, prompt_ids, strict=True)
            ]

        return await self._context.texts.run(sum(map(len, prompt_ids)), texts)


def _check(fields: CompletionRequest, config: ApiConfig, defaults: GenerationDefaults) -> CheckedCall:
    check_range("logprobs", fields.logprobs, 0, config.max_logprobs)
    least = 0 if fields.echo or fields.prompt_logprobs is not None else 1
    return check_call(fields, config, defaults, logprobs=fields.logprobs, least_max_tokens=least)


def _num_prompt_logprobs(call: CheckedCall, echo: bool) -> int | None:
    asked = [call.prompt_logprobs, call.logprobs if echo else None]
    return max((num for num in asked if num is not None), default=None)


def _check_prompts(fields: CompletionRequest, config: ApiConfig) -> list[str | list[int]]:
    """The prompts of a call, each text or ids, none of them empty and not too many sequences of them."""
    prompts = _prompts(fields.prompt)
    if not all(prompts):
        raise InvalidRequest(_NO_TEXT, param="prompt")
    each, param = max((getattr(fields, name) or 1, name) for name in ("n", "best_of", "beam_width"))
    if len(prompts) * each > config.max_sequences_per_call:
        raise InvalidRequest(
            f"{len(prompts)} prompts times {param} {each} are more than {config.max_sequences_per_call} sequences, the "
            "limit of one call.",
            param=param,
        )
    return prompts


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    # The wire shape has seen to it that all members are alike; looking at a million ids again takes 60 ms.
    if not prompt or isinstance(prompt[0], int):
        return [cast(list[int], prompt)]
    return list(cast(list[str | list[int]], prompt))


def _encode(prompt: str | list[int], bound: PromptBound, special: bool, go_on: Callable[[], None]) -> list[int]:
    ids = prompt if isinstance(prompt, list) else text_ids(prompt, bound, special, go_on)
    if not ids:
        raise InvalidRequest(_NO_TEXT, param="prompt")
    # Text may have others too: tokens that were added to the tokenizer.
    check_token_ids(ids, bound.model.vocab_size, "prompt")
    return ids
