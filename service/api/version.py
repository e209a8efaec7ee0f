"""GET /version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import orjson
from starlette.requests import Request
from starlette.responses import Response


async def get_version(http: Request) -> Response:
    return Response(orjson.dumps({"version": _version()}), media_type="application/json")


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
