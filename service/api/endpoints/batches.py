"""/v1/batches: create, list, get, follow and cancel. A batch is visible to its own client only."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.event_stream import EventStreamResponse, json_event
from service.api.calls.json_body import read_json_object
from service.api.calls.page_query import page_query
from service.api.calls.query_fields import flag_of
from service.api.calls.token_checks import quote
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.api.endpoints.generating import BATCH_ENDPOINTS
from service.api.error_responses import error_body
from service.api.scope import client_of
from service.api.serving_state import Phase
from service.batch_jobs.batch import Batch
from service.batch_jobs.batch_jobs import BatchJobs
from service.errors import InvalidRequest, Overloaded, StorageFull, StorageUnavailable
from service.protocol.batches import BatchError, BatchErrors, BatchList, BatchObject, BatchRequest, RequestCounts

BATCHES_PATH = "/v1/batches"
MOST_BATCHES_OF_A_PAGE = 100
MAX_FOLLOWED = 64
"""The number of event streams at a time."""

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_MOST_WINDOW_S = 7 * 24 * 3600
_TIMED = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class Batches:
    def __init__(self, context: ApiContext, jobs: BatchJobs) -> None:
        self._context = context
        self._jobs = jobs
        self._num_followed = 0

    async def create(self, http: Request) -> Response:
        fields = parse(BatchRequest, await read_json_object(http, self._context.texts, self._context.config))
        if fields.model_extra:
            name = next(iter(fields.model_extra))
            raise InvalidRequest(f"Unknown field {quote(name)}.", param=name[:64], code="unknown_parameter")
        if fields.endpoint not in BATCH_ENDPOINTS:
            raise InvalidRequest(
                f"endpoint must be one of {', '.join(BATCH_ENDPOINTS)}, got {quote(fields.endpoint)}.",
                param="endpoint",
            )
        expiry = fields.output_expires_after
        batch = await self._jobs.create(
            client_of(http.scope),
            fields.endpoint,
            fields.input_file_id,
            (fields.completion_window, _seconds_of(fields.completion_window)),
            fields.metadata,
            None if expiry is None else expiry.seconds,
        )
        return _answer(batch)

    async def list(self, http: Request) -> Response:
        query = page_query(http, most=MOST_BATCHES_OF_A_PAGE, default=20)
        batches, has_more = await self._jobs.list(client_of(http.scope), query)
        data = [batch_object(batch) for batch in batches]
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        page = BatchList(data=data, first_id=first_id, last_id=last_id, has_more=has_more)
        return Response(page.model_dump_json(), media_type="application/json")

    async def get(self, http: Request) -> Response:
        return _answer(await self._jobs.get(http.path_params["batch_id"], client_of(http.scope)))

    async def events(self, http: Request) -> Response:
        """A stream of events: the batch's results as they come, and the batch itself."""
        wants_lines = flag_of(http, "lines") is not False
        batch = await self._jobs.get(http.path_params["batch_id"], client_of(http.scope))
        if self._num_followed >= MAX_FOLLOWED:
            raise Overloaded(
                f"{MAX_FOLLOWED} streams of batch events are open, which is the limit. Poll the batch instead."
            )
        self._num_followed += 1
        return EventStreamResponse(self._followed(batch, wants_lines), self._context, self._note_end)

    async def cancel(self, http: Request) -> Response:
        return _answer(await self._jobs.cancel(http.path_params["batch_id"], client_of(http.scope)))

    async def _followed(self, batch: Batch, wants_lines: bool) -> AsyncIterator[ServerSentEvent]:
        try:
            async for told in self._jobs.follow(batch, self._is_ending, wants_lines):
                if isinstance(told, Batch):
                    yield json_event(batch_object(told).model_dump_json(), "batch")
                else:
                    yield json_event(told.decode(), "batch.line")
        except (StorageUnavailable, StorageFull) as fault:
            yield json_event(error_body(fault).decode(), "error")

    def _is_ending(self) -> bool:
        return self._context.state.phase is Phase.DRAINING

    def _note_end(self) -> None:
        self._num_followed -= 1


def batch_object(batch: Batch) -> BatchObject:
    errors = [BatchError(code=e.code, line=e.line, message=e.message, param=e.param) for e in batch.errors]
    return BatchObject.model_validate(
        {
            "id": batch.batch_id,
            "endpoint": batch.endpoint,
            "errors": BatchErrors(data=errors) if errors else None,
            "input_file_id": batch.input_file_id,
            "completion_window": batch.completion_window,
            "status": str(batch.status),
            "output_file_id": batch.output_file_id if batch.is_over else None,
            "error_file_id": batch.error_file_id if batch.is_over else None,
            "created_at": batch.created_at,
            "expires_at": batch.expires_at,
            **{f"{status}_at": batch.reached_at.get(status) for status in _TIMED},
            "request_counts": RequestCounts(
                total=batch.num_lines, completed=batch.num_completed, failed=batch.num_failed
            ),
            "metadata": batch.metadata,
        }
    )


def _answer(batch: Batch) -> Response:
    return Response(batch_object(batch).model_dump_json(), media_type="application/json")


def _seconds_of(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= _MOST_WINDOW_S:
        raise InvalidRequest(
            "completion_window must be a whole number of s, m, h or d, at most 7d, such as 24h.",
            param="completion_window",
        )
    return seconds
