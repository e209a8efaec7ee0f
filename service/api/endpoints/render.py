"""The engine requests of a completion or a chat, without running them: routers (llm-d's) need the same token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from service.api.answers.answering import ignored_header
from service.api.call_head import call_head
from service.api.calls.chat_call import prepare_chat
from service.api.calls.completion_call import prepare_completion
from service.api.calls.json_body import read_json_object
from service.api.calls.prepared_call import PreparedCall, build_requests
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.errors import UnsupportedParameter
from service.protocol.chat import ChatRequest
from service.protocol.completions import CompletionRequest
from service.protocol.render import RenderedPrompt, RenderedSampling


class Render:
    """Whatever refuses a call refuses it here, in the same words."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def completion(self, http: HttpRequest) -> Response:
        """A list of RenderedPrompt, one per prompt."""
        context, model = self._context, self._context.state.check_generates()
        arrival_s = model.clock.now_s()
        fields = parse(CompletionRequest, await read_json_object(http, context.texts, context.config))
        head = call_head(context.ids, http, "cmpl-", arrival_s, own_id=fields.request_id)
        call = await prepare_completion(fields, head, http.receive, model, context)
        rendered = await self._rendered(call, fields.cache_salt)
        return _json(b"[" + b",".join(rendered) + b"]", call)

    async def chat(self, http: HttpRequest) -> Response:
        """One RenderedPrompt."""
        context, model = self._context, self._context.state.check_generates()
        arrival_s = model.clock.now_s()
        fields = parse(ChatRequest, await read_json_object(http, context.texts, context.config))
        head = call_head(context.ids, http, "chatcmpl-", arrival_s, own_id=fields.request_id)
        call = await prepare_chat(fields, head, http.receive, model, context)
        (rendered,) = await self._rendered(call, fields.cache_salt)
        return _json(rendered, call)

    async def _rendered(self, call: PreparedCall, cache_salt: str | None) -> Sequence[bytes]:
        if call.checked.sampling.beam is not None:
            raise UnsupportedParameter("use_beam_search is not supported by this route.", param="use_beam_search")

        def made() -> list[bytes]:
            requests = build_requests(call, self._context.config)
            return [orjson.dumps(_shape(request, call, cache_salt).model_dump()) for request in requests]

        return await self._context.texts.run(sum(map(len, call.prompts.token_ids)), made)


_NUMBERS = {each.name for each in fields(SamplingParams) if each.type in ("int", "float")} - {"seed"}
"""Parameters that are shown with the engine's own values."""


def _shape(request: Request, call: PreparedCall, cache_salt: str | None) -> RenderedPrompt:
    checked, sampling = call.checked, request.sampling
    by_name = {name: getattr(sampling, name) for name in RenderedSampling.model_fields.keys() & _NUMBERS}
    return RenderedPrompt(
        request_id=request.request_id,
        model=checked.model,
        token_ids=list(request.prompt_token_ids),
        features=None,
        sampling_params=RenderedSampling(
            **by_name,
            seed=checked.sampling.seed,
            stop=list(checked.stops.strings),
            stop_token_ids=sorted(checked.stops.token_ids),
            include_stop_str_in_output=checked.stops.include_stop,
            ignore_eos=checked.ignore_eos,
            skip_special_tokens=checked.skip_special_tokens,
            logprobs=checked.logprobs,
            prompt_logprobs=sampling.num_prompt_logprobs,
            thinking_token_budget=None if call.thinking is None else call.thinking.num_tokens,
        ),
        stream=checked.stream,
        cache_salt=cache_salt,
        priority=-checked.priority if call.model.defaults.lower_priority_first else checked.priority,
    )


def _json(json: bytes, call: PreparedCall) -> Response:
    return Response(json, headers=ignored_header(call.checked.ignored), media_type="application/json")
