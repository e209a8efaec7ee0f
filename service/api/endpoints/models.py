"""GET /v1/models and /v1/models/{id}; DELETE of models that were fine-tuned here."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from service.api.calls.validation import check_name
from service.api.context import ApiContext
from service.api.scope import client_of
from service.core.adapter import Adapters
from service.errors import PermissionDenied
from service.finetune.model_name import PREFIX
from service.protocol.fine_tuning import DeletedModel
from service.protocol.models import DefaultSampling, ModelCard, ModelList, ModelPermission


class Models:
    """Every served name of the model has a card, and every adapter."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def list(self, http: Request) -> Response:
        cards = [self._card(name) for name in self._context.config.served_model_names]
        adapters = self._adapters()
        if adapters is not None:
            cards += [self._card(name, folder) for name, folder in adapters.served().items()]
        return _json(ModelList(data=cards, first_id=cards[0].id, last_id=cards[-1].id))

    async def get(self, http: Request) -> Response:
        name = http.path_params["model_id"]
        adapters = self._adapters()
        check_name(name, adapters, self._context.config)
        return _json(self._card(name, None if adapters is None else adapters.folder_name(name)))

    async def delete(self, http: Request) -> Response:
        """Deletes a model that one of the client's own fine-tuning jobs made."""
        name = http.path_params["model_id"]
        check_name(name, self._context.state.check_loaded().adapters, self._context.config)
        tuning = self._context.state.check_loaded().fine_tuning
        if tuning is None or not name.startswith(PREFIX):
            raise PermissionDenied("Only models that were fine-tuned here can be deleted.")
        await tuning.models.delete(name, client_of(http.scope))
        return _json(DeletedModel(id=name))

    def _adapters(self) -> Adapters | None:
        model = self._context.state.model
        return None if model is None else model.adapters

    def _card(self, name: str, adapter_folder: str | None = None) -> ModelCard:
        model = self._context.state.check_loaded()
        return ModelCard(
            id=name,
            created=model.created,
            root=adapter_folder or model.root,
            parent=None if adapter_folder is None else self._context.config.served_model_names[0],
            max_model_len=model.max_model_len,
            quantization=model.quantization,
            deterministic=self._context.config.deterministic,
            deterministic_on_request=model.takes_deterministic and self._context.config.exact_swap,
            permission=[ModelPermission(id=f"modelperm-{name}", created=model.created)],
            default_sampling=DefaultSampling(
                **{name: getattr(model.defaults, name) for name in DefaultSampling.model_fields}
            ),
            display_name=name,
            created_at=datetime.fromtimestamp(model.created, UTC),
            max_input_tokens=model.max_model_len,
            max_tokens=model.max_model_len,
        )


def _json(shape: ModelCard | ModelList | DeletedModel) -> Response:
    return Response(shape.model_dump_json(), media_type="application/json")
