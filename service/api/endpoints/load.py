"""GET /load: how many requests there are, for routers that balance by it, as at vLLM."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext


class Load:
    def __init__(self, context: ApiContext) -> None:
        self._state = context.state

    async def get(self, http: Request) -> Response:
        """Requests to the engine that run or wait; a call of several prompts is several."""
        num_live = self._state.check_ready().engine.num_live
        return Response(orjson.dumps({"server_load": num_live}), media_type="application/json")
