"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, for operators."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from service.api.calls.json_body import read_json_object
from service.api.calls.token_checks import quote
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.core.adapter import Adapters
from service.errors import InvalidRequest, ModelNotFound
from service.protocol.adapters import LoadAdapter, UnloadAdapter


class AdapterRoutes:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def load(self, http: Request) -> Response:
        adapters = self._adapters()
        fields = parse(LoadAdapter, await read_json_object(http, self._context.texts, self._context.config))
        await adapters.load(fields.lora_name, fields.lora_path, in_place=fields.load_inplace)
        return PlainTextResponse(f"Success: LoRA adapter {fields.lora_name!r} added successfully.")

    async def unload(self, http: Request) -> Response:
        adapters = self._adapters()
        fields = parse(UnloadAdapter, await read_json_object(http, self._context.texts, self._context.config))
        if not adapters.unload(fields.lora_name):
            raise ModelNotFound(f"The adapter {quote(fields.lora_name)} is not loaded.", param="lora_name")
        return PlainTextResponse(f"Success: LoRA adapter {fields.lora_name!r} removed successfully.")

    def _adapters(self) -> Adapters:
        adapters = self._context.state.check_ready().adapters
        if adapters is None:
            raise InvalidRequest("This server serves no LoRA adapters; start it with --lora-modules or --lora-dir.")
        return adapters
