from __future__ import annotations

from openai.types import Model

from service.protocol.models import ModelCard, ModelList


def test_the_card_is_openais() -> None:
    card = ModelCard(id="a/b", created=1, root="r", max_model_len=5)
    Model.model_validate_json(card.model_dump_json(), strict=True)
    assert ModelList(data=[card]).model_dump()["object"] == "list"
