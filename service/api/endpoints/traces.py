"""GET /v1/requests/{request_id}/trace."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.call_trace import MAX_TRACES
from service.api.context import ApiContext
from service.api.scope import client_of
from service.errors import NotFound


class Traces:
    def __init__(self, context: ApiContext) -> None:
        self._store = context.traces

    async def get(self, http: Request) -> Response:
        trace = self._store.get(http.path_params["request_id"], client_of(http.scope))
        if trace is None:
            raise NotFound(f"There is no such request of yours among the last {MAX_TRACES}.", param="request_id")
        return Response(trace.show().model_dump_json(), media_type="application/json")
