"""GET /load: the number of requests, for routers that balance by it, as in vLLM."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext


class Load:
    def __init__(self, context: ApiContext) -> None:
        self._state = context.state

    async def get(self, http: Request) -> Response:
        """The engine's running and waiting requests; a call of several prompts counts as several."""
        num_live = self._state.check_ready().engine.num_live
        return Response(orjson.dumps({"server_load": num_live}), media_type="application/json")
