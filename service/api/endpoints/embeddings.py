"""POST /v1/embeddings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.embedding_answer import answer_embedding
from service.api.call_head import call_head
from service.api.calls.embedding_call import prepare_embedding
from service.api.calls.json_body import read_json_object
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.protocol.embeddings import EmbeddingRequest


class Embeddings:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def create(self, http: Request) -> Response:
        context = self._context
        model, embedder = context.state.check_embeds()
        arrival_s = model.clock.now_s()
        fields = parse(EmbeddingRequest, await read_json_object(http, context.texts, context.config))
        head = call_head(context.ids, http, "embd-", arrival_s, own_id=fields.request_id)
        call = await prepare_embedding(fields, head, http.receive, model, embedder, context)
        return await answer_embedding(http, call, context)
