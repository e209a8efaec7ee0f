"""GET /version: version and build of this server."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext
from service.core.version import distribution_version

_PACKAGES = ("torch", "triton", "tokenizers", "starlette", "uvicorn", "pydantic")


class Version:
    """`build` and `system_fingerprint` are there once the model is loaded."""

    def __init__(self, context: ApiContext) -> None:
        self._state = context.state
        self._facts: dict[str, object] = {
            "version": distribution_version(),
            "python": platform.python_version(),
            "packages": {name: found for name in _PACKAGES if (found := _version_of(name)) is not None},
        }

    async def get(self, http: Request) -> Response:
        model = self._state.model
        facts = dict(self._facts)
        if model is not None:
            facts |= {"build": dict(model.build), "system_fingerprint": model.system_fingerprint}
        return Response(orjson.dumps(facts), media_type="application/json")


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
