"""POST /reset_prefix_cache, for operators, as in vLLM and SGLang: between two measurements, or after new weights."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext


class PrefixCacheReset:
    """Running requests go on; requests after the answer find nothing that was cached before."""

    def __init__(self, context: ApiContext) -> None:
        self._state = context.state

    async def reset(self, http: Request) -> Response:
        self._state.check_ready().engine.forget_prefixes()
        return Response(status_code=200)
