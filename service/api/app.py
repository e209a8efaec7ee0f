"""The HTTP app: a list of routes, and middleware (pure ASGI, the outermost first)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.admin_only import admin_only
from service.api.batch_calls import BatchCalls
from service.api.call_trace import TraceStore
from service.api.context import ApiContext
from service.api.endpoints.adapters import AdapterRoutes
from service.api.endpoints.api_docs import ApiDocs
from service.api.endpoints.batches import BATCHES_PATH, Batches
from service.api.endpoints.files import Files
from service.api.endpoints.fine_tuning import JOBS_PATH, FineTuningRoutes
from service.api.endpoints.generating import GENERATING, PATHS
from service.api.endpoints.health import Health
from service.api.endpoints.invocations import INVOCATIONS_PATH, Invocations
from service.api.endpoints.load import Load
from service.api.endpoints.messages import Messages
from service.api.endpoints.metrics import Metrics
from service.api.endpoints.models import Models
from service.api.endpoints.openapi import OpenApi
from service.api.endpoints.playground import Playground
from service.api.endpoints.prefix_cache import PrefixCacheReset
from service.api.endpoints.render import Render
from service.api.endpoints.responses import Responses
from service.api.endpoints.stored_responses import StoredResponses
from service.api.endpoints.tokenize import Tokenize
from service.api.endpoints.tokenizer_info import TokenizerInfo
from service.api.endpoints.traces import Traces
from service.api.endpoints.version import Version
from service.api.http_exchange import HttpWatcher
from service.api.messages_errors import MESSAGES_PATH
from service.api.middleware.allowed_hosts import AllowedHosts
from service.api.middleware.bearer_auth import BearerAuth
from service.api.middleware.body_budget import BodyBudget
from service.api.middleware.body_limits import BodyLimits
from service.api.middleware.error_barrier import ErrorBarrier
from service.api.middleware.http_facts import HttpFacts
from service.api.middleware.key_limit import KeyLimit
from service.api.middleware.request_ids import RequestIds
from service.api.middleware.root_path import RootPath
from service.api.random_ids import RandomIds
from service.api.response_store import ResponseStore
from service.api.serving_state import ServingState
from service.api.text_pool import TextPool
from service.batch_jobs.batch_jobs import BatchJobs
from service.config import FORM_BYTES, UPLOAD_PATH, ApiConfig
from service.core.rare_warning import RareWarning
from service.metrics.recorder import Recorder
from service.metrics.stored_state import StoredState, StoredStateGauges
from service.storage.storage import Storage

_logger = logging.getLogger(__name__)


def create_app(
    state: ServingState,
    config: ApiConfig,
    recorder: Recorder,
    registry: CollectorRegistry,
    storage: Storage,
    *,
    watchers: Sequence[HttpWatcher] = (),
) -> Starlette:
    """The ASGI app. It can serve at once; `state` says what (see `serving_state` for what `main.py` must do).

    recorder: the object that is also the engine's StatsSink. registry: what /metrics shows; the gauges of stored state
        are registered in it. storage: of files; the app closes it. watchers: called for every answered request.
    The app's lifespan runs batches and ends the tokenizing threads and background responses. It neither starts nor
    stops the engine.
    At SIGTERM the app does not end streams: they end when the engine ends their requests.
    """
    unread = RareWarning(_logger, "streams whose client read nothing for %g s were cut: %d")
    texts = TextPool(config.tokenizer_threads, recorder.times)
    responses = ResponseStore(config.responses_store_entries, config.responses_store_bytes)
    context = ApiContext(state, config, texts, recorder, TraceStore(), RandomIds(), unread, responses, storage)
    calls = BatchCalls(context)
    batches = BatchJobs(storage, calls.answer, calls.most_lines)
    registry.register(StoredStateGauges(lambda: _stored_state(storage, batches)))
    routes = _routes(context, registry, batches)
    templates = {route.endpoint: route.path for route in routes}
    app = _App(
        routes=routes,
        middleware=[
            *([Middleware(RootPath, root_path=config.root_path)] if config.root_path else []),
            Middleware(RequestIds),
            Middleware(HttpFacts, recorder=recorder, routes=templates, watchers=watchers),
            *_cross_origin(config.allowed_origins),
            Middleware(ErrorBarrier, recorder=recorder),
            *([] if "*" in config.allowed_hosts else [Middleware(AllowedHosts, names=config.allowed_hosts)]),
            Middleware(
                BearerAuth,
                keys=config.api_keys,
                admin_keys=config.admin_api_keys,
                guards_metrics=config.guard_metrics,
            ),
            *_key_limit(config.max_requests_per_key),
            Middleware(
                BodyLimits,
                max_bytes=config.max_body_bytes,
                timeout_s=config.body_timeout_s,
                budget=BodyBudget(config.max_total_body_bytes),
                on_end=texts.note_large_work,
                upload_path=UPLOAD_PATH,
                max_upload_bytes=config.max_file_bytes + FORM_BYTES,
            ),
        ],
        lifespan=lambda _: _lifespan(context, batches),
    )
    app.router.redirect_slashes = False  # a redirect would be built from the client's Host header
    return app


class _App(Starlette):
    """Without the middlewares that Starlette puts around every app for its exceptions: `ErrorBarrier` does that."""

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self.router
        for cls, args, kwargs in reversed(self.user_middleware):
            app = cls(app, *args, **kwargs)
        return app


def _stored_state(storage: Storage, batches: BatchJobs) -> StoredState:
    budget = storage.budget
    return StoredState(
        budget.num_bytes,
        budget.max_bytes,
        batches.count(),
        batches.num_lines_running,
        batches.num_lines_left,
        batches.lines_ended,
    )


def _key_limit(most: int | None) -> list[Middleware]:
    return [] if most is None else [Middleware(KeyLimit, most=most, paths=PATHS | {INVOCATIONS_PATH})]


def _cross_origin(origins: Sequence[str]) -> list[Middleware]:
    """Lets pages of these origins call; a browser asks beforehand, without a key."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("X-Request-Id", "request-id", "x-ignored-params", "Retry-After"),
        )
    ]


def _routes(context: ApiContext, registry: CollectorRegistry, batches: BatchJobs) -> list[Route]:
    health, models, tokenize = Health(context), Models(context), Tokenize(context)
    stored, playground, render = StoredResponses(context), Playground(), Render(context)
    adapters, files, jobs = AdapterRoutes(context), Files(context), FineTuningRoutes(context)
    batch_routes = Batches(context, batches)
    routes = [
        *(_route(endpoint.path, endpoint.make(context).create, "POST") for endpoint in GENERATING),
        _route("/v1/responses/input_tokens", Responses(context).count_input_tokens, "POST"),
        _route("/v1/responses/{response_id}", stored.get),
        _route("/v1/responses/{response_id}", stored.delete, "DELETE"),
        _route("/v1/responses/{response_id}/cancel", stored.cancel, "POST"),
        _route("/v1/responses/{response_id}/input_items", stored.input_items),
        _route(UPLOAD_PATH, files.create, "POST"),
        _route(UPLOAD_PATH, files.list),
        _route(f"{UPLOAD_PATH}/{{file_id}}", files.get),
        _route(f"{UPLOAD_PATH}/{{file_id}}", files.delete, "DELETE"),
        _route(f"{UPLOAD_PATH}/{{file_id}}/content", files.content),
        _route(BATCHES_PATH, batch_routes.create, "POST"),
        _route(BATCHES_PATH, batch_routes.list),
        _route(f"{BATCHES_PATH}/{{batch_id}}", batch_routes.get),
        _route(f"{BATCHES_PATH}/{{batch_id}}/events", batch_routes.events),
        _route(f"{BATCHES_PATH}/{{batch_id}}/cancel", batch_routes.cancel, "POST"),
        _route(f"{MESSAGES_PATH}/count_tokens", Messages(context).count_tokens, "POST"),
        _route("/v1/models", models.list),
        _route("/v1/models/{model_id:path}", models.get),
        _route("/v1/models/{model_id:path}", models.delete, "DELETE"),
        _route(JOBS_PATH, jobs.create, "POST"),
        _route(JOBS_PATH, jobs.list),
        _route(f"{JOBS_PATH}/{{job_id}}", jobs.get),
        _route(f"{JOBS_PATH}/{{job_id}}/pause", jobs.pause, "POST"),
        _route(f"{JOBS_PATH}/{{job_id}}/resume", jobs.resume, "POST"),
        _route(f"{JOBS_PATH}/{{job_id}}/cancel", jobs.cancel, "POST"),
        _route(f"{JOBS_PATH}/{{job_id}}/events", jobs.events),
        _route(f"{JOBS_PATH}/{{job_id}}/checkpoints", jobs.checkpoints),
        _route("/v1/load_lora_adapter", admin_only(adapters.load, context.config), "POST"),
        _route("/v1/unload_lora_adapter", admin_only(adapters.unload, context.config), "POST"),
        _route("/health", health.health),
        _route("/ready", health.ready),
        _route("/ping", health.health, "GET", "POST"),
        _route("/metrics", Metrics(registry).get),
        _route("/v1/requests/{request_id}/trace", Traces(context).get),
        _route("/tokenize", tokenize.tokenize, "POST"),
        _route("/detokenize", tokenize.detokenize, "POST"),
        _route("/v1/completions/render", render.completion, "POST"),
        _route("/v1/chat/completions/render", render.chat, "POST"),
        _route(INVOCATIONS_PATH, Invocations(context).invoke, "POST"),
        _route("/tokenizer_info", TokenizerInfo(context).get),
        _route("/load", Load(context).get),
        _route("/reset_prefix_cache", admin_only(PrefixCacheReset(context).reset, context.config), "POST"),
        _route("/version", Version(context).get),
        _route("/openapi.json", OpenApi(context.config).get),
        _route("/docs", ApiDocs(context.config).get),
        _route("/", playground.page),
        _route("/playground/{name:path}", playground.file),
    ]
    return _joined(routes)


def _joined(routes: Sequence[Route]) -> list[Route]:
    """One route a path: who uses a method that it has not is told of all that it has."""
    by_path: dict[str, dict[str, ASGIApp]] = {}
    for route in routes:
        by_path.setdefault(route.path, {}).update(dict.fromkeys(route.methods or (), route.endpoint))
    return [Route(path, ByMethod(answers), methods=list(answers)) for path, answers in by_path.items()]


def _route(path: str, answer: Callable[[Request], Awaitable[Response]], *methods: str) -> Route:
    """A GET, if no method is named."""
    return Route(path, Endpoint(answer), methods=methods or ("GET",))


class Endpoint:
    """Answers a request with what `answer` returns of it. What Starlette makes of a function looks out for exceptions
    twice, too, at 20 us a request; here they are for `ErrorBarrier`."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)


class ByMethod:
    """Answers each method in its own way."""

    def __init__(self, answers: Mapping[str, ASGIApp]) -> None:
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answers[scope["method"]](scope, receive, send)


@asynccontextmanager
async def _lifespan(context: ApiContext, batches: BatchJobs) -> AsyncIterator[None]:
    batches.start()
    yield
    await batches.close()
    context.responses.close()
    context.texts.close()
    await context.storage.close()
