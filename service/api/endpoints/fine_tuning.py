"""/v1/fine_tuning/jobs: create, list, get, pause, resume and cancel. A job is visible to its own client only."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from pydantic import BaseModel
from sse_starlette import ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.answering import ignored_header
from service.api.answers.event_stream import EventStreamResponse, json_event
from service.api.answers.fine_tuning_objects import checkpoint_list, event_list, event_object, job_list, job_object
from service.api.calls.fine_tuning_call import MAX_METADATA, checked_job
from service.api.calls.json_body import read_json_object
from service.api.calls.page_query import page_query
from service.api.calls.token_checks import quote
from service.api.calls.validation import check_name, ignored_fields
from service.api.context import ApiContext
from service.api.scope import client_of, header_of
from service.errors import InvalidRequest, NotFound, Overloaded
from service.finetune.fine_tuning import FineTuning
from service.finetune.job import Job
from service.finetune.jobs import FineTuningJobs

JOBS_PATH = "/v1/fine_tuning/jobs"
MOST_OF_A_PAGE = 100
MAX_FOLLOWED = 64
"""The number of event streams at a time."""

_USUAL_JOBS, _USUAL_CHECKPOINTS = 20, 10
_METADATA = re.compile(r"metadata\[(.{1,64})\]", re.DOTALL)
_TURN_ON = "Fine-tuning is not enabled on this server; start it with --enable-finetuning."
_PURPOSE = "fine-tune"
_STREAM = {"": True, "1": True, "true": True, "0": False, "false": False}


class FineTuningRoutes:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._num_followed = 0

    async def create(self, http: Request) -> Response:
        tuning = self._tuning()
        self._context.state.check_ready()
        body = await read_json_object(http, self._context.texts, self._context.config)
        spec, unknown = checked_job(body, tuning.base)
        ignored = ignored_fields(unknown, self._context.config)
        check_name(spec.model, self._context.state.check_ready().adapters, self._context.config)
        for param, file_id in spec.files().items():
            await self._check_file(param, file_id, client_of(http.scope))
        job = await tuning.jobs.create(client_of(http.scope), spec)
        return _json(job_object(job, tuning.base), ignored_header(ignored))

    async def list(self, http: Request) -> Response:
        tuning = self._tuning()
        query, metadata = page_query(http, most=MOST_OF_A_PAGE, default=_USUAL_JOBS), _metadata(http)
        page = await tuning.jobs.list(client_of(http.scope), metadata, query)
        return _json(job_list(page, tuning.base))

    async def get(self, http: Request) -> Response:
        return _json(job_object(await self._find(http), self._tuning().base))

    async def pause(self, http: Request) -> Response:
        tuning = self._tuning()
        return _json(job_object(await tuning.jobs.pause(await self._find(http)), tuning.base))

    async def resume(self, http: Request) -> Response:
        tuning = self._tuning()
        return _json(job_object(await tuning.jobs.resume(await self._find(http)), tuning.base))

    async def cancel(self, http: Request) -> Response:
        tuning = self._tuning()
        return _json(job_object(await tuning.jobs.cancel(await self._find(http)), tuning.base))

    async def events(self, http: Request) -> Response:
        """A page, newest first; or, as a stream, all events as they come, oldest first."""
        job, jobs = await self._find(http), self._tuning().jobs
        if _is_streamed(http):
            return self._followed(jobs, job)
        return _json(event_list(await jobs.events(job, page_query(http, most=MOST_OF_A_PAGE, default=_USUAL_JOBS))))

    async def checkpoints(self, http: Request) -> Response:
        job = await self._find(http)
        query = page_query(http, most=MOST_OF_A_PAGE, default=_USUAL_CHECKPOINTS)
        return _json(checkpoint_list(await self._tuning().jobs.checkpoints(job, query), job.job_id))

    async def _find(self, http: Request) -> Job:
        return await self._tuning().jobs.get(http.path_params["job_id"], client_of(http.scope))

    def _tuning(self) -> FineTuning:
        tuning = self._context.state.check_loaded().fine_tuning
        if tuning is None:
            raise NotFound(_TURN_ON, code="fine_tuning_disabled")
        return tuning

    async def _check_file(self, param: str, file_id: str, client: str) -> None:
        try:
            file = await self._context.storage.files.get(file_id, client)
        except NotFound:
            raise InvalidRequest(f"{param}: there is no file {quote(file_id)}.", param=param) from None
        if file.purpose != _PURPOSE:
            raise InvalidRequest(
                f"{param}: the purpose of {file_id} must be {_PURPOSE!r}, got {file.purpose!r}.", param=param
            )

    def _followed(self, jobs: FineTuningJobs, job: Job) -> Response:
        if self._num_followed >= MAX_FOLLOWED:
            raise Overloaded(
                f"{MAX_FOLLOWED} streams of job events are open, which is the limit. Poll the job instead."
            )
        self._num_followed += 1
        return EventStreamResponse(_stream(jobs, job), self._context, self._note_end)

    def _note_end(self) -> None:
        self._num_followed -= 1


async def _stream(jobs: FineTuningJobs, job: Job) -> AsyncIterator[ServerSentEvent]:
    async for event in jobs.follow(job):
        yield json_event(event_object(event).model_dump_json(), "fine_tuning.job.event")


def _is_streamed(http: Request) -> bool:
    """By `stream`, else by the Accept header."""
    asked = http.query_params.get("stream")
    if asked is None:
        return "text/event-stream" in header_of(http.scope, b"accept")
    if asked.lower() not in _STREAM:
        raise InvalidRequest("stream must be true or false.", param="stream")
    return _STREAM[asked.lower()]


def _metadata(http: Request) -> dict[str, str] | None:
    """The metadata that jobs must have, from `metadata[key]=value`; None for jobs without metadata: `metadata=null`."""
    wanted = {}
    for name, value in http.query_params.multi_items():
        if name == "metadata" and value == "null":
            return None
        if name.startswith("metadata"):
            key = _METADATA.fullmatch(name)
            if key is None:
                raise InvalidRequest(
                    "metadata must be given as metadata[key]=value or metadata=null.", param="metadata"
                )
            wanted[key[1]] = value
    if len(wanted) > MAX_METADATA:
        raise InvalidRequest(f"metadata may hold at most {MAX_METADATA} pairs.", param="metadata")
    return wanted


def _json(shape: BaseModel, headers: dict[str, str] | None = None) -> Response:
    return Response(shape.model_dump_json(), headers=headers, media_type="application/json")
