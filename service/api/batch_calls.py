"""Runs the lines of batches like any client's request: through the same endpoints, behind the same barrier."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from service.api.context import ApiContext
from service.api.endpoints.generating import GENERATING
from service.api.error_responses import error_body
from service.api.middleware.body_budget import BodyBudget
from service.api.middleware.error_barrier import ErrorBarrier
from service.batch_jobs.batch import Batch
from service.batch_jobs.batch_output import Answer
from service.batch_jobs.idle_share import QUIET_S, EngineFacts, IdleShare
from service.batch_jobs.line_pace import LinePace
from service.errors import PayloadTooLarge, RequestError

_LOOK_EVERY_S = 0.05


class BatchCalls:
    """Event-loop thread. Its calls are background calls (`core/request.py`)."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._endpoints = {each.path: each.make(context) for each in GENERATING}
        self._app = ErrorBarrier(self._route, context.recorder)
        self._bodies = BodyBudget(context.config.max_total_body_bytes)  # apart from clients' bodies
        self._share = IdleShare()
        self._pace = LinePace()

    async def answer(self, batch: Batch, body: bytes) -> Answer:
        """The answer to a request with this body to the batch's endpoint, from the batch's client. If cancelled, the
        request ends like that of a client that disconnects. While other requests are served, it begins when the pace
        of its bytes allows."""
        most = self._context.config.max_body_bytes
        if len(body) > most:
            refusal = PayloadTooLarge(f"The body may have at most {most} bytes.")
            return Answer(refusal.status, "", error_body(refusal))
        await self._wait_turn(len(body))
        request_id = self._context.ids.next()
        exchange, share = _Exchange(body), self._bodies.share()
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": batch.endpoint,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "state": {
                "client": batch.client,
                "request_id": request_id,
                "request_id_is_given": False,
                "body_share": share,
                "is_background": True,
            },
        }
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            share.release()
        return Answer(exchange.status, request_id, bytes(exchange.answer))

    def most_lines(self, num_running: int) -> int:
        """How many lines may run now, with the `num_running` that do. None begins that the process's end, once it is
        announced, would interrupt: what was computed of it would be lost."""
        if not self._context.state.wants_requests:
            return 0
        try:
            model = self._context.state.check_ready()
            model.engine.check_accepts()
        except RequestError:
            return 0
        engine, snapshot = model.engine, model.engine.snapshot
        facts = EngineFacts(
            engine.max_num_seqs,
            snapshot.batch_size,
            snapshot.num_waiting,
            snapshot.used_blocks / max(1, snapshot.total_blocks),
            engine.last_other_s,
        )
        return self._share.most(facts, num_running, model.clock.now_s())

    async def _wait_turn(self, num_bytes: int) -> None:
        now_s = asyncio.get_running_loop().time
        begins_s = self._pace.begins_s(num_bytes, now_s(), is_beside_others=self._is_beside_others())
        while (left_s := begins_s - now_s()) > 0 and self._is_beside_others():
            await asyncio.sleep(min(left_s, _LOOK_EVERY_S))

    def _is_beside_others(self) -> bool:
        """Whether requests of others are served now, or were a moment ago."""
        try:
            model = self._context.state.check_ready()
        except RequestError:
            return False
        return model.clock.now_s() - model.engine.last_other_s < QUIET_S

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoints[scope["path"]].create(Request(scope, receive, send))
        await response(scope, receive, send)


class _Exchange:
    """Acts as a client that sends one body, waits, and keeps the answer."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.answer = bytearray()

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.get_running_loop().create_future()  # it never disconnects
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")
