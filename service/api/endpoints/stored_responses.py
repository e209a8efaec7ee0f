"""GET and DELETE /v1/responses/{id}, its cancel and its input_items. A response is visible to its own client only."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.followed_events import following
from service.api.answers.input_item_page import MOST_OF_A_PAGE, listed_items, page_of
from service.api.calls.page_query import page_query
from service.api.calls.query_fields import flag_of, number_of
from service.api.context import ApiContext
from service.api.response_store import StoredResponse
from service.api.scope import client_of
from service.errors import InvalidRequest, Overloaded

MOST_FOLLOWERS = 16
"""Of one response: each of its tokens is written to all of them."""


class StoredResponses:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._store = context.responses

    async def get(self, http: Request) -> Response:
        """The whole response, or its events after `starting_after`."""
        stored, after = self._find(http), number_of(http, "starting_after")
        if not flag_of(http, "stream"):
            if after is not None:
                raise InvalidRequest("starting_after is only allowed when stream is true.", param="starting_after")
            return _json(stored.response)
        if stored.events is None:
            raise InvalidRequest(
                "Only a response that was made with background and stream can be streamed again.", param="stream"
            )
        if stored.events.num_followers >= MOST_FOLLOWERS:
            raise Overloaded(
                f"{MOST_FOLLOWERS} streams of this response are open, which is the limit. Try again later."
            )
        return following(stored.events, -1 if after is None else after, self._context, {})

    async def delete(self, http: Request) -> Response:
        response_id = http.path_params["response_id"]
        self._store.delete(response_id, client_of(http.scope))
        return _json(orjson.dumps({"id": response_id, "object": "response", "deleted": True}))

    async def cancel(self, http: Request) -> Response:
        """A response that has ended is left as it is."""
        stored = self._find(http)
        if stored.task is None:
            raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
        if stored.is_running:
            stored.task.cancel()
            cancelled = {**orjson.loads(stored.response), "status": "cancelled"}
            self._store.complete(http.path_params["response_id"], orjson.dumps(cancelled))
        return _json(stored.response)

    async def input_items(self, http: Request) -> Response:
        stored, query = self._find(http), page_query(http, most=MOST_OF_A_PAGE, default=20)
        response_id = http.path_params["response_id"]

        def page() -> bytes:
            items = listed_items(orjson.loads(stored.items), response_id)
            return orjson.dumps(page_of(items, query))

        return _json(await self._context.texts.run(len(stored.items), page))

    def _find(self, http: Request) -> StoredResponse:
        return self._store.get(http.path_params["response_id"], client_of(http.scope))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
