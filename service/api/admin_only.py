"""The guard of routes that change the server: a route asks for it where it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

from starlette.requests import Request
from starlette.responses import Response

from service.api.scope import client_of
from service.config import ApiConfig
from service.errors import AuthenticationFailed, PermissionDenied

Answer = Callable[[Request], Awaitable[Response]]


def admin_only(answer: Answer, config: ApiConfig) -> Answer:
    """Answers callers with an admin key as `answer` does; `BearerAuth` has checked the key. Refuses all others before
    their body is read. On a server without admin keys everybody is refused: an open server is open to its users
    only."""

    @wraps(answer)
    async def guarded(http: Request) -> Response:
        if not config.admin_api_keys:
            raise PermissionDenied(
                "This route needs an admin API key, and this server has none; start it with --admin-api-key."
            )
        if not http.scope.get("state", {}).get("is_admin", False):
            if client_of(http.scope):
                raise PermissionDenied("This route needs an admin API key; the given key is not one.")
            raise AuthenticationFailed("Incorrect or missing admin API key.")
        return await answer(http)

    return guarded
