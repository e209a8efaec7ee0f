"""GET /v1/requests/{request_id}/trace, once or as a stream of events that follows the request."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.event_stream import EventStreamResponse, json_event
from service.api.answers.followed_trace import follow, look_up
from service.api.call_trace import MAX_TRACES, CallTrace
from service.api.calls.query_fields import flag_of
from service.api.context import ApiContext
from service.api.scope import client_of, header_of
from service.engine.async_engine import AsyncEngine
from service.errors import NotFound, Overloaded

MAX_FOLLOWED = 16
"""The number of followed traces: each update takes time of the engine and of the event loop."""


class Traces:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._num_followed = 0

    async def get(self, http: Request) -> Response:
        follows = _is_followed(http)
        trace = self._context.traces.get(http.path_params["request_id"], client_of(http.scope))
        if trace is None:
            raise NotFound(
                f"There is no request of yours with this id among the last {MAX_TRACES} requests.", param="request_id"
            )
        engine = self._context.state.check_loaded().engine
        if follows:
            return self._followed(trace, engine)
        await look_up(trace, engine)
        return Response(trace.show().model_dump_json(), media_type="application/json")

    def _followed(self, trace: CallTrace, engine: AsyncEngine) -> Response:
        if self._num_followed >= MAX_FOLLOWED:
            raise Overloaded(f"{MAX_FOLLOWED} streams of traces are open, which is the limit. Ask without follow.")
        self._num_followed += 1
        return EventStreamResponse(_events(trace, engine), self._context, self._note_end)

    def _note_end(self) -> None:
        self._num_followed -= 1


async def _events(trace: CallTrace, engine: AsyncEngine) -> AsyncIterator[ServerSentEvent]:
    async for json in follow(trace, engine):
        yield json_event(json, "trace")


def _is_followed(http: Request) -> bool:
    """By `follow`, else by the Accept header."""
    asked = flag_of(http, "follow")
    return "text/event-stream" in header_of(http.scope, b"accept") if asked is None else asked
