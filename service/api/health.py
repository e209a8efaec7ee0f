"""GET /health: would a new short request complete? GET /ready: may a balancer send requests here?

/ping is /health under the name that SageMaker asks for, as at vLLM.
"""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext
from service.api.serving_state import Phase


class Health:
    """200 or 503; the body says the phase, or `stuck` if the engine does not get on. Neither needs a key."""

    def __init__(self, context: ApiContext) -> None:
        self._state = context.state

    async def health(self, http: Request) -> Response:
        """200 if and only if the model is loaded, the server is not draining and the engine gets on."""
        return self._answer(self._state.is_healthy())

    async def ready(self, http: Request) -> Response:
        """503 while loading or draining; what the engine does is /health's question."""
        return self._answer(self._state.phase is Phase.READY)

    def _answer(self, good: bool) -> Response:
        phase = self._state.phase
        is_stuck = phase is Phase.READY and not good
        body = orjson.dumps({"status": "stuck" if is_stuck else phase})
        return Response(body, 200 if good else 503, media_type="application/json")
