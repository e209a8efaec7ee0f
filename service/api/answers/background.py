"""A response that nobody waits for: it is made in a task, and its place in the store is told how it ended."""

from __future__ import annotations

import asyncio
import logging

from service.api.answers.answering import whole_json_of
from service.api.answers.generation import Generation
from service.api.answers.response_answer import ResponseAnswer
from service.api.context import ApiContext
from service.api.error_responses import internal_error
from service.errors import RequestError

_logger = logging.getLogger(__name__)


def begin_in_background(
    response_id: str, form: ResponseAnswer, generation: Generation, context: ApiContext
) -> asyncio.Task[None]:
    """The task. When it has ended, in whatever way, the generation is closed; if it is cancelled, the store is left as
    it is."""

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
