from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from service.api.admin_only import admin_only
from service.api.app import Endpoint
from service.api.middleware.bearer_auth import BearerAuth
from service.api.middleware.error_barrier import ErrorBarrier
from service.api.middleware.request_ids import RequestIds
from service.config import ApiConfig
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder


def asked(config: ApiConfig, authorization: str | None) -> tuple[httpx.Response, int]:
    """The answer of a guarded route, and how many calls came through to it."""
    calls = []

    async def answer(http: Request) -> Response:
        calls.append(http)
        return Response("done")

    routes = Router([Route("/admin", Endpoint(admin_only(answer, config)), methods=["POST"])])
    guarded = BearerAuth(routes, keys=config.api_keys, admin_keys=config.admin_api_keys)
    app = RequestIds(ErrorBarrier(guarded, Recorder(Instruments(CollectorRegistry()))))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            return await http.post("/admin", headers={} if authorization is None else {"Authorization": authorization})

    return asyncio.run(ask()), len(calls)


@pytest.mark.parametrize(
    ("keys", "admin_keys", "authorization", "status", "code"),
    [
        ((), ("ops:sk-admin",), "Bearer sk-admin", 200, None),
        (("ann:sk-a",), ("ops:sk-admin", "sk-other"), "Bearer sk-other", 200, None),
        ((), ("ops:sk-admin",), None, 401, "invalid_api_key"),
        ((), ("ops:sk-admin",), "Bearer ops:sk-admin", 401, "invalid_api_key"),
        ((), ("ops:sk-admin",), "Basic sk-admin", 401, "invalid_api_key"),
        ((), ("ops:sk-admin",), "", 401, "invalid_api_key"),
        (("ann:sk-a",), ("ops:sk-admin",), None, 401, "invalid_api_key"),
        (("ann:sk-a",), ("ops:sk-admin",), "Bearer sk-a", 403, "permission_denied"),
        (("ann:sk-a",), (), "Bearer sk-a", 403, "permission_denied"),
        ((), (), "Bearer sk-a", 403, "permission_denied"),
        ((), (), None, 403, "permission_denied"),
    ],
)
def test_only_an_admin_key_opens_and_no_call_of_others_comes_through(
    keys: tuple[str, ...], admin_keys: tuple[str, ...], authorization: str | None, status: int, code: str | None
) -> None:
    config = ApiConfig(served_model_names=("m",), api_keys=keys, admin_api_keys=admin_keys)
    response, num_calls = asked(config, authorization)
    assert response.status_code == status
    assert num_calls == (1 if status == 200 else 0)
    if code is not None:
        assert response.json()["error"]["code"] == code
    assert ("www-authenticate" in response.headers) == (status == 401)
