"""From a prepared call to its answer: one JSON body, or a stream of frames."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answer_form import AnswerForm
from service.api.answers.frame_stream import FrameStream
from service.api.answers.generation import Generation
from service.api.answers.piece_frames import CHARACTERS_OF_A_LOGPROB
from service.api.answers.sse import TokenStreamResponse
from service.api.call_trace import CallTrace
from service.api.calls.prepared_call import PreparedCall, build_requests
from service.api.context import ApiContext
from service.api.disconnect import ClientGone, run_unless_disconnected
from service.api.error_responses import nobody_there
from service.api.http_exchange import note_call


async def submit(call: PreparedCall, context: ApiContext) -> Generation:
    """Submit one request per prompt, and keep the call's trace. The caller passes the result on to `respond`.

    Raises ContextLengthExceeded, InvalidRequest, Overloaded, Unavailable.
    """
    checked = call.checked
    num_characters = sum(map(len, checked.sampling.bad_words))
    requests = await context.texts.run(num_characters, lambda: build_requests(call, context.config))
    trace = CallTrace(call.head, checked.model, requests, call.form.seconds)
    generation = Generation(
        call.model.engine,
        call.model.tokenizer,
        requests,
        checked.stops,
        call.make_output,
        note_end=trace.note_end,
        note_finish=trace.note_finish,
        skip_special_tokens=checked.skip_special_tokens,
        num_returned=checked.sampling.num_returned,
    )
    try:
        context.traces.add(trace)
    except BaseException:
        _close(generation, context, "call_failed")
        raise
    return generation


async def respond(
    http: Request,
    call: PreparedCall,
    generation: Generation,
    make_form: Callable[[PreparedCall, Generation], AnswerForm],
    context: ApiContext,
) -> Response:
    """The answer to a call that has been submitted. Closes the generation when the answer ends, or if it cannot
    begin."""
    note_call(http.scope["state"], context.traces.get(call.head.call_id, call.head.client))
    try:
        form, headers = make_form(call, generation), ignored_header(call.checked.ignored)
        if not call.checked.stream:
            return await _whole(http, generation, form, context, headers)
        return TokenStreamResponse(
            FrameStream(context, generation, form),
            context.recorder.times,
            context.unread,
            keep_alive=form.keep_alive,
            keepalive_s=context.config.stream_keepalive_s,
            send_timeout_s=context.config.stream_send_timeout_s,
            headers=headers,
        )
    except ClientGone:
        _close(generation, context, "client_disconnected")
        return nobody_there()
    except BaseException:
        _close(generation, context, "call_failed")
        raise


async def _whole(
    http: Request, generation: Generation, form: AnswerForm, context: ApiContext, headers: dict[str, str]
) -> Response:
    """Wait for all choices; raises ClientGone if the client leaves."""
    json = await run_unless_disconnected(http.receive, whole_json_of(generation, form, context))
    _close(generation, context, "call_failed")
    return Response(json, headers=headers, media_type="application/json")


async def whole_json_of(generation: Generation, form: AnswerForm, context: ApiContext) -> str:
    """Wait for all choices. Raises the error of a request that failed."""
    try:
        choices = await generation.collect()
        num_characters = generation.num_logprobs * CHARACTERS_OF_A_LOGPROB
        return await context.texts.run(num_characters, lambda: form.whole(choices))
    finally:
        context.recorder.times.detokenize += generation.text_s


def _close(generation: Generation, context: ApiContext, reason: str) -> None:
    """Nobody will read the rest."""
    if generation.close():
        context.recorder.record_abort(reason)


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """`x-ignored-params`: the names of unknown fields, made safe for a header and bounded."""
    if not names:
        return {}
    safe = [re.sub(r"[^A-Za-z0-9_.\-]", "?", name[:64]) for name in names[:32]]
    return {"x-ignored-params": ",".join(safe)}
