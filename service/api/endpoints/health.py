"""GET /health: would a new short request complete? GET /ready: should a load balancer send requests here?

/ping is /health under SageMaker's name, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext
from service.api.serving_state import Phase


class Health:
    """200 or 503; the body has the phase, or the engine's ailment and its reason. No key is needed."""

    def __init__(self, context: ApiContext) -> None:
        self._state = context.state

    async def health(self, http: Request) -> Response:
        """200 if and only if the model is loaded, the server is not draining and the engine makes progress."""
        ailment = self._state.ailment()
        if ailment is None:
            return _answer(200, {"status": self._state.phase})
        return _answer(503, {"status": ailment.status, "reason": ailment.reason})

    async def ready(self, http: Request) -> Response:
        """503 while loading or draining, and from the announcement of the end; the engine's state is a matter of
        /health."""
        if self._state.wants_requests:
            return _answer(200, {"status": Phase.READY})
        return _answer(503, {"status": Phase.DRAINING if self._state.phase is Phase.READY else self._state.phase})


def _answer(status: int, body: Mapping[str, str]) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
