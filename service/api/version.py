"""GET /version."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.core.version import distribution_version


async def get_version(http: Request) -> Response:
    return Response(orjson.dumps({"version": distribution_version()}), media_type="application/json")
