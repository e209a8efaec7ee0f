from __future__ import annotations

from datetime import UTC, datetime

from anthropic.types import ModelInfo
from openai.types import Model

from service.protocol.models import DefaultSampling, ModelCard, ModelList, ModelPermission


def test_the_card_is_openais_and_anthropics() -> None:
    card = ModelCard(
        id="a/b",
        created=1,
        root="r",
        max_model_len=5,
        permission=[ModelPermission(id="p", created=1)],
        default_sampling=DefaultSampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0),
        display_name="a/b",
        created_at=datetime.fromtimestamp(1, UTC),
        max_input_tokens=5,
        max_tokens=5,
    )
    Model.model_validate_json(card.model_dump_json(), strict=True)
    ModelInfo.model_validate_json(card.model_dump_json(), strict=True)
    assert ModelList(data=[card], first_id=card.id, last_id=card.id).model_dump()["object"] == "list"
