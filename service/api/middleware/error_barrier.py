"""Errors in a request become its answer."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.disconnect import ClientGone
from service.api.error_responses import error_response, from_starlette, internal_error, nobody_there
from service.api.http_exchange import note_error
from service.api.scope import http_only
from service.errors import Overloaded, RequestError
from service.metrics.recorder import Recorder

_logger = logging.getLogger(__name__)


class ErrorBarrier:
    """No error in a request gets beyond it: errors become error bodies of the route's API, unexpected exceptions are
    logged."""

    def __init__(self, app: ASGIApp, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except (ClientDisconnect, ClientGone):  # before its body was complete, or while its prompt was read
            await nobody_there()(scope, receive, send)
        except HTTPException as error:  # unknown route, or wrong method
            response = error_response(from_starlette(error), scope)
            response.headers.update(error.headers or {})
            await response(scope, receive, send)
        except RequestError as error:  # kept in no other variable: with its traceback it would be a reference cycle
            await self._refuse(error, scope, receive, None if started else send)
        except MemoryError:  # whatever needed it was freed with its frames
            await self._refuse(
                Overloaded("The server is short of memory. Try again later."), scope, receive, None if started else send
            )
        except Exception:  # a defect of ours costs this request, not the connection
            _logger.exception("request %s failed", scope["state"]["request_id"])
            await self._refuse(internal_error(), scope, receive, None if started else send)

    async def _refuse(self, refusal: RequestError, scope: Scope, receive: Receive, send: Send | None) -> None:
        """send: None if the answer has begun."""
        code = refusal.code or refusal.error_type
        self._recorder.record_rejection(code)
        note_error(scope["state"], code)
        if send is not None:
            await error_response(refusal, scope)(scope, receive, send)
