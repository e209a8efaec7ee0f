"""Responses that are made in a background task; the store gets the result."""

from __future__ import annotations

import asyncio
import logging

from service.api.answers.answering import whole_json_of
from service.api.answers.frame_stream import FrameStream
from service.api.answers.generation import Generation
from service.api.answers.response_answer import ResponseAnswer
from service.api.context import ApiContext
from service.api.error_responses import internal_error
from service.api.kept_events import KeptEvents
from service.errors import RequestError

_logger = logging.getLogger(__name__)


def begin_in_background(
    response_id: str, form: ResponseAnswer, generation: Generation, context: ApiContext
) -> asyncio.Task[None]:
    """The task that makes the response. When it has ended, in whatever way, the generation is closed. If it is
    cancelled, the store is left as it is."""

    def close(_: object) -> None:  # also of a task that was cancelled before it began
        if generation.close():
            context.recorder.record_abort("response_cancelled")

    task = asyncio.create_task(_make(response_id, form, generation, context))
    task.add_done_callback(close)
    return task


async def _make(response_id: str, form: ResponseAnswer, generation: Generation, context: ApiContext) -> None:
    try:
        response = (await whole_json_of(generation, form, context)).encode()
    except RequestError as error:
        response = form.failed(error)
    except Exception:  # a defect of ours: the client learns of it when it asks
        _logger.exception("response %s failed", response_id)
        response = form.failed(internal_error())
    context.responses.complete(response_id, response)


def begin_events_in_background(
    response_id: str, form: ResponseAnswer, generation: Generation, context: ApiContext, events: KeptEvents
) -> asyncio.Task[None]:
    """As `begin_in_background`, but the task also adds the events of the response's stream to `events`, which always
    get an end. `form` tells how the response ended."""
    frames = FrameStream(context, generation, form)

    def close(_: object) -> None:
        frames.close("response_cancelled")
        if not events.has_ended:
            context.responses.note_events(response_id, events.add(form.stopped()))
            events.end()

    task = asyncio.create_task(_make_events(response_id, frames, context, events))
    task.add_done_callback(close)
    return task


async def _make_events(response_id: str, frames: FrameStream, context: ApiContext, events: KeptEvents) -> None:
    news = asyncio.Event()
    frames.read_by(news.set)
    while True:
        news.clear()
        context.responses.note_events(response_id, events.add(frames.take()))
        if frames.is_done:
            break
        await news.wait()
    events.end()
