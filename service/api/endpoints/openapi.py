"""GET /openapi.json: this API's description, made from the wire shapes that the server itself reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, get_args

import orjson
from pydantic import BaseModel, RootModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.input_item_page import MOST_OF_A_PAGE
from service.api.calls.file_form import LEAST_EXPIRY_S, MOST_EXPIRY_S, PURPOSES
from service.api.endpoints.batches import BATCHES_PATH
from service.api.endpoints.files import MOST_FILES_OF_A_PAGE
from service.api.endpoints.fine_tuning import JOBS_PATH
from service.api.endpoints.generating import GENERATING, GeneratingEndpoint
from service.api.messages_errors import MESSAGES_PATH
from service.config import UPLOAD_PATH, ApiConfig
from service.core.version import distribution_version
from service.protocol.adapters import LoadAdapter, UnloadAdapter
from service.protocol.batches import BatchEvent, BatchList, BatchObject, BatchRequest
from service.protocol.chat import ChatChunk, ChatRequest, ChatResponse
from service.protocol.completions import CompletionChunk, CompletionRequest, CompletionResponse
from service.protocol.error_body import ErrorBody
from service.protocol.files import DeletedFile, FileList, FileObject, Purpose
from service.protocol.fine_tuning import (
    CheckpointList,
    CreateJob,
    DeletedModel,
    FineTuningJobObject,
    JobEventList,
    JobEventObject,
    JobList,
)
from service.protocol.messages import CountTokensRequest, TokensCount
from service.protocol.messages_error import MessagesErrorBody
from service.protocol.models import ModelCard, ModelList
from service.protocol.render import RenderedPrompt
from service.protocol.responses import (
    DeletedResponse,
    InputItemList,
    InputTokenCount,
    ResponseBody,
    ResponseEvent,
    ResponsesRequest,
)
from service.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeRequest,
    TokenizeResponse,
)
from service.protocol.trace import RequestTrace

_FLAG = {"anyOf": [{"type": "boolean"}, {"enum": ["", "1", "0"]}]}
"""In a query string, a name alone means true."""
_Shape = type[BaseModel]


class RenderedPrompts(RootModel[list[RenderedPrompt]]):
    """One per prompt."""


class InvocationsResponse(RootModel[CompletionResponse | ChatResponse]):
    """The answer of the API that was asked for."""


class InvocationsChunk(RootModel[CompletionChunk | ChatChunk]):
    """The chunk of the API that was asked for."""


_REQUESTS: tuple[_Shape, ...] = (
    *(endpoint.request for endpoint in GENERATING),
    TokenizeRequest,
    TokenizeChatRequest,
    DetokenizeRequest,
    CountTokensRequest,
    LoadAdapter,
    UnloadAdapter,
    CreateJob,
    BatchRequest,
)
_RESPONSES: tuple[_Shape, ...] = (
    *(shape for endpoint in GENERATING for shape in (endpoint.response, endpoint.chunk) if shape is not None),
    ModelCard,
    ModelList,
    TokenizeResponse,
    DetokenizeResponse,
    RequestTrace,
    BatchObject,
    BatchEvent,
    BatchList,
    FileObject,
    FileList,
    DeletedFile,
    FineTuningJobObject,
    JobList,
    JobEventObject,
    JobEventList,
    CheckpointList,
    DeletedModel,
    InputItemList,
    InputTokenCount,
    DeletedResponse,
    ErrorBody,
    TokensCount,
    MessagesErrorBody,
    RenderedPrompt,
    RenderedPrompts,
    InvocationsResponse,
    InvocationsChunk,
)
_PAGE = [
    {"name": name, "in": "query", "schema": schema}
    for name, schema in (
        ("after", {"type": "string"}),
        ("limit", {"type": "integer", "minimum": 1, "maximum": MOST_OF_A_PAGE}),
        ("order", {"type": "string", "enum": ["asc", "desc"]}),
    )
]
_EVENTS_OF_A_RESPONSE = [
    {"name": "stream", "in": "query", "schema": _FLAG},
    {"name": "starting_after", "in": "query", "schema": {"type": "integer", "minimum": 0}},
]
_UPLOAD = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": LEAST_EXPIRY_S, "maximum": MOST_EXPIRY_S},
    },
    "additionalProperties": False,
}
_PUBLIC: list[dict[str, list[str]]] = []


class OpenApi:
    """Made once, at construction."""

    def __init__(self, config: ApiConfig) -> None:
        self._json = orjson.dumps(describe(config))

    async def get(self, http: Request) -> Response:
        return Response(self._json, media_type="application/json")


def describe(config: ApiConfig) -> dict[str, Any]:
    """The OpenAPI 3.1 description of a server with this configuration: the models' names, and whether it requires
    keys."""
    schemas = orjson.loads(_schemas())
    if not config.serves_adapters:  # adapters' names are not known beforehand
        _name_models(schemas, config.served_model_names)
    _bound_logprobs(schemas, config.max_logprobs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": distribution_version(),
            "description": (
                "An OpenAI-compatible inference service. Unknown request fields are accepted and named in the header "
                "`x-ignored-params`; fields of OpenAI's or vLLM's APIs that are known but not honoured are refused "
                "with code `unsupported_parameter` unless they have their default value."
            ),
        },
        **({"servers": [{"url": config.root_path}]} if config.root_path else {}),
        "security": [{"bearer": []}] if config.api_keys else [],
        "components": {
            "securitySchemes": {name: {"type": "http", "scheme": "bearer"} for name in ("bearer", "admin")},
            "schemas": schemas,
        },
        "paths": _paths(config.guard_metrics),
    }


@cache
def _schemas() -> bytes:
    """The schemas of all wire shapes as JSON, whatever the configuration. Takes a tenth of a second; used by
    openapi.json and /docs."""
    shapes: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        *((shape, "validation") for shape in _REQUESTS),
        *((shape, "serialization") for shape in _RESPONSES),
    ]
    _, schemas = models_json_schema(shapes, ref_template="#/components/schemas/{model}")
    return orjson.dumps(schemas["$defs"])


def _name_models(schemas: dict[str, Any], names: Sequence[str]) -> None:
    """Limits `model` in requests to these names."""
    for shape in _REQUESTS:
        model = schemas[shape.__name__]["properties"].get("model", {})
        for each in model.get("anyOf", [model]):
            if each.get("type") == "string":
                each["enum"] = list(names)


def _bound_logprobs(schemas: dict[str, Any], most: int) -> None:
    for shape in _REQUESTS:
        for name in ("logprobs", "top_logprobs", "prompt_logprobs"):
            field = schemas[shape.__name__]["properties"].get(name, {})
            if "maximum" in field:
                field["maximum"] = most


def _paths(guards_metrics: bool) -> dict[str, Any]:
    model_id = {"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}
    request_id = {**model_id, "name": "request_id"}
    follow = {"name": "follow", "in": "query", "schema": _FLAG}
    trace = {**_json_of(RequestTrace), "text/event-stream": {"itemSchema": _event_of(RequestTrace)}}
    events = {"text/event-stream": {"itemSchema": _event_of(ResponseEvent, is_named=True)}}
    response = {"parameters": [{**model_id, "name": "response_id"}]}
    healthy = {**_operation("Would a new short request complete?", _json_object()), "security": _PUBLIC}
    return {
        **{each.path: {"post": _generating(each)} for each in GENERATING},
        f"{MESSAGES_PATH}/count_tokens": {
            "post": _call("Tokens of a message's prompt.", (CountTokensRequest,), TokensCount, error=MessagesErrorBody)
        },
        "/v1/responses/input_tokens": {
            "post": _call("Tokens of a response's prompt.", (ResponsesRequest,), InputTokenCount)
        },
        "/v1/responses/{response_id}": {
            "get": _operation("A response that is kept, or its events.", _json_of(ResponseBody) | events)
            | {"parameters": [*response["parameters"], *_EVENTS_OF_A_RESPONSE]},
            "delete": _operation("Keep it no longer.", _json_of(DeletedResponse)) | response,
        },
        "/v1/responses/{response_id}/cancel": {
            "post": _operation("Stop a response in the background.", _json_of(ResponseBody)) | response
        },
        "/v1/responses/{response_id}/input_items": {
            "get": _operation("What a response was made from.", _json_of(InputItemList))
            | {"parameters": [*response["parameters"], *_PAGE]}
        },
        **_file_paths(),
        **_fine_tuning_paths(),
        **_batch_paths(),
        "/v1/models": {"get": _operation("The models that may be named.", _json_of(ModelList))},
        "/v1/models/{model_id}": {
            "get": {**_operation("One model.", _json_of(ModelCard)), "parameters": [model_id]},
            "delete": {**_operation("Delete a fine-tuned model.", _json_of(DeletedModel)), "parameters": [model_id]},
        },
        "/v1/requests/{request_id}/trace": {
            "get": {**_operation("Why a request was slow.", trace), "parameters": [request_id, follow]}
        },
        "/v1/load_lora_adapter": {"post": _operation_of_operators("Serve a LoRA adapter.", LoadAdapter)},
        "/v1/unload_lora_adapter": {"post": _operation_of_operators("Serve it no more.", UnloadAdapter)},
        "/tokenize": {"post": _call("Ids of a prompt.", (TokenizeRequest, TokenizeChatRequest), TokenizeResponse)},
        "/detokenize": {"post": _call("Text of ids.", (DetokenizeRequest,), DetokenizeResponse)},
        "/v1/completions/render": {
            "post": _call("What a completion would ask of the engine.", (CompletionRequest,), RenderedPrompts)
        },
        "/v1/chat/completions/render": {
            "post": _call("What a chat would ask of the engine.", (ChatRequest,), RenderedPrompt)
        },
        "/invocations": {
            "post": _streamed(
                _call("A completion or a chat.", (CompletionRequest, ChatRequest), InvocationsResponse),
                _event_of(InvocationsChunk),
            )
        },
        "/tokenizer_info": {"get": _operation("How the tokenizer is configured.", _json_object())},
        "/load": {"get": _operation("How many requests there are.", _json_object())},
        "/reset_prefix_cache": {
            "post": {**_operation("Empty the prefix cache.", {}), "security": [{"admin": []}]},
        },
        "/version": {"get": _operation("What runs here.", _json_object())},
        "/openapi.json": {"get": _operation("This description.", _json_object())},
        "/docs": {"get": _operation("This description for people.", {"text/html": {}})},
        "/health": {"get": healthy},
        "/ping": {"get": healthy, "post": healthy},
        "/ready": {"get": {**_operation("May a balancer send requests?", _json_object()), "security": _PUBLIC}},
        "/metrics": {
            "get": _operation("For Prometheus.", {"text/plain": {}}) | ({} if guards_metrics else {"security": _PUBLIC})
        },
        "/": {"get": {**_operation("The playground.", {"text/html": {}}), "security": _PUBLIC}},
        "/playground/{name}": {
            "get": {
                **_operation("A file of the playground.", {"text/*": {}}),
                "parameters": [{**model_id, "name": "name"}],
                "security": _PUBLIC,
            }
        },
    }


def _file_paths() -> dict[str, Any]:
    one = {"parameters": [{"name": "file_id", "in": "path", "required": True, "schema": {"type": "string"}}]}
    page = [
        {"name": "purpose", "in": "query", "schema": {"type": "string", "enum": list(get_args(Purpose))}},
        *(each for each in _PAGE if each["name"] != "limit"),
        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST_FILES_OF_A_PAGE}},
    ]
    form = {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}}
    return {
        UPLOAD_PATH: {
            "post": {**_operation("Upload a file.", _json_of(FileObject)), "requestBody": form},
            "get": {**_operation("The files.", _json_of(FileList)), "parameters": page},
        },
        f"{UPLOAD_PATH}/{{file_id}}": {
            "get": _operation("One file.", _json_of(FileObject)) | one,
            "delete": _operation("Delete it.", _json_of(DeletedFile)) | one,
        },
        f"{UPLOAD_PATH}/{{file_id}}/content": {
            "get": _operation("What is in it.", {"application/octet-stream": {}}) | one
        },
    }


def _fine_tuning_paths() -> dict[str, Any]:
    one = {"parameters": [{"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}}]}
    stream = {"name": "stream", "in": "query", "schema": _FLAG}
    metadata = {
        "name": "metadata",
        "in": "query",
        "style": "deepObject",
        "schema": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    paged = {"parameters": [*one["parameters"], *_PAGE]}
    events = {**_json_of(JobEventList), "text/event-stream": {"itemSchema": _event_of(JobEventObject)}}
    return {
        JOBS_PATH: {
            "post": _call("Fine-tune the model.", (CreateJob,), FineTuningJobObject),
            "get": {**_operation("The jobs.", _json_of(JobList)), "parameters": [*_PAGE, metadata]},
        },
        f"{JOBS_PATH}/{{job_id}}": {"get": _operation("One job.", _json_of(FineTuningJobObject)) | one},
        **{
            f"{JOBS_PATH}/{{job_id}}/{verb}": {
                "post": _operation(f"{verb.capitalize()} a job.", _json_of(FineTuningJobObject)) | one
            }
            for verb in ("pause", "resume", "cancel")
        },
        f"{JOBS_PATH}/{{job_id}}/events": {
            "get": _operation("What a job has told.", events) | {"parameters": [*paged["parameters"], stream]}
        },
        f"{JOBS_PATH}/{{job_id}}/checkpoints": {
            "get": _operation("The models of a job's last epochs.", _json_of(CheckpointList)) | paged
        },
    }


def _batch_paths() -> dict[str, Any]:
    one = {"parameters": [{"name": "batch_id", "in": "path", "required": True, "schema": {"type": "string"}}]}
    lines = {"name": "lines", "in": "query", "schema": _FLAG}
    events = {"text/event-stream": {"itemSchema": _event_of(BatchEvent)}}
    return {
        BATCHES_PATH: {
            "post": _call("Run a file of requests between those of others.", (BatchRequest,), BatchObject),
            "get": {**_operation("The batches.", _json_of(BatchList)), "parameters": _PAGE},
        },
        f"{BATCHES_PATH}/{{batch_id}}": {"get": _operation("One batch.", _json_of(BatchObject)) | one},
        f"{BATCHES_PATH}/{{batch_id}}/events": {
            "get": _operation("What becomes of a batch, and its results as they come.", events)
            | {"parameters": [*one["parameters"], lines]}
        },
        f"{BATCHES_PATH}/{{batch_id}}/cancel": {"post": _operation("End a batch.", _json_of(BatchObject)) | one},
    }


def _generating(endpoint: GeneratingEndpoint) -> dict[str, Any]:
    call = _call(endpoint.summary, (endpoint.request,), endpoint.response, error=endpoint.error)
    if endpoint.chunk is None:
        return call
    return _streamed(call, _event_of(endpoint.chunk, endpoint.error, is_named=endpoint.names_events))


def _streamed(call: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """Adds a stream of these events to the possible answers of the call."""
    call["responses"]["200"]["content"]["text/event-stream"] = {"itemSchema": event}
    return call


def _call(summary: str, requests: tuple[_Shape, ...], response: _Shape, *, error: _Shape = ErrorBody) -> dict[str, Any]:
    schema = _reference(requests[0]) if len(requests) == 1 else {"oneOf": [_reference(each) for each in requests]}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**_operation(summary, _json_of(response), error), "requestBody": body}


def _operation_of_operators(summary: str, request: _Shape) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": _reference(request)}}}
    return {**_operation(summary, {"text/plain": {}}), "requestBody": body, "security": [{"admin": []}]}


def _operation(summary: str, content: dict[str, Any], error: _Shape = ErrorBody) -> dict[str, Any]:
    refusal = {"description": "An error.", "content": _json_of(error)}
    return {
        "summary": summary,
        "responses": {"200": {"description": "Done.", "content": content}, "4XX": refusal, "5XX": refusal},
    }


def _json_of(shape: _Shape) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(shape)}}


def _event_of(chunk: _Shape, error: _Shape = ErrorBody, *, is_named: bool = False) -> dict[str, Any]:
    """A server-sent event, as OpenAPI 3.2 describes it. is_named: it also has its type, and the last one is not
    [DONE]."""
    payload = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_reference(chunk), _reference(error)]},
    }
    if is_named:
        fields = {"event": {"type": "string"}, "data": payload}
    else:
        fields = {"data": {"type": "string", "anyOf": [{"const": "[DONE]"}, payload]}}
    return {"type": "object", "required": list(fields), "properties": fields}


def _json_object() -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "object"}}}


def _reference(shape: _Shape) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}
