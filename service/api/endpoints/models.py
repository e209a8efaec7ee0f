"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from service.api.calls.validation import check_model
from service.api.context import ApiContext
from service.protocol.models import DefaultSampling, ModelCard, ModelList, ModelPermission


class Models:
    """Every name that the model is served under has a card."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def list(self, http: Request) -> Response:
        cards = [self._card(name) for name in self._context.config.served_model_names]
        return _json(ModelList(data=cards))

    async def get(self, http: Request) -> Response:
        name = http.path_params["model_id"]
        check_model(name, self._context.config)
        return _json(self._card(name))

    def _card(self, name: str) -> ModelCard:
        model = self._context.state.check_loaded()
        return ModelCard(
            id=name,
            created=model.created,
            root=model.root,
            parent=None,
            max_model_len=model.max_model_len,
            permission=[ModelPermission(id=f"modelperm-{name}", created=model.created)],
            default_sampling=DefaultSampling(
                **{name: getattr(model.defaults, name) for name in DefaultSampling.model_fields}
            ),
        )


def _json(shape: ModelCard | ModelList) -> Response:
    return Response(shape.model_dump_json(), media_type="application/json")
