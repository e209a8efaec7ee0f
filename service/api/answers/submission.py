"""The way of a checked call into the engine, the same for every endpoint that generates."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request as HttpRequest

from service.api.answers.answering import abandon
from service.api.answers.generation import Generation
from service.api.call_trace import CallTrace
from service.api.calls.output_form import CompiledForm
from service.api.calls.request_building import CallHead, CallPrompts, build_requests
from service.api.calls.validation import CheckedCall
from service.api.context import ApiContext
from service.api.middleware.bearer_auth import client_of
from service.api.random_ids import RandomIds
from service.api.serving_state import ServedModel
from service.text.chat_output import ChatOutput


def call_head(ids: RandomIds, http: HttpRequest, prefix: str, arrival_s: float) -> CallHead:
    """A new id, and whose call it is. prefix: of the id, as OpenAI has one for each endpoint."""
    return CallHead(f"{prefix}-{ids.next()}", int(time.time()), arrival_s, client_of(http.scope))


async def submit(
    context: ApiContext,
    model: ServedModel,
    call: CheckedCall,
    prompts: CallPrompts,
    head: CallHead,
    form: CompiledForm,
    make_output: Callable[[], ChatOutput] | None = None,
) -> Generation:
    """Submit one request per prompt, and keep the call's trace. Whoever calls this calls `close` of what it returns.

    make_output: what tells a choice's output apart. Raises ContextLengthExceeded, InvalidRequest, Overloaded,
    Unavailable.
    """
    requests = await context.texts.run(
        sum(map(len, call.rules.bad_words)),
        lambda: build_requests(call, prompts, model, head, grammar=form.grammar, config=context.config),
    )
    trace = CallTrace(head, call.model, requests, form.seconds)
    generation = Generation(
        model.engine,
        model.tokenizer,
        requests,
        call.stops,
        make_output,
        note_end=trace.note_end,
        skip_special_tokens=call.skip_special_tokens,
        num_returned=call.sampling.num_returned,
    )
    try:
        context.traces.add(trace)
    except BaseException:
        abandon(context, generation)
        raise
    return generation
