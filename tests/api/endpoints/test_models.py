from __future__ import annotations

import httpx
import pytest
from anthropic import Anthropic
from openai import NotFoundError, OpenAI

from service.protocol.models import ModelCard, ModelList
from tests.api.running_server import FOLDER, MODEL
from tests.api.wire import error_of


def test_lists_every_served_name(http: httpx.Client) -> None:
    cards = ModelList.model_validate(http.get("/v1/models").json()).data
    assert [card.id for card in cards] == [MODEL, "alias"]
    assert {(card.root, card.parent, card.max_model_len, card.created) for card in cards} == {
        ("tiny-root", None, 2048, 1_700_000_000)
    }


def test_anthropics_client_lists_them_too(http: httpx.Client) -> None:
    with Anthropic(base_url=str(http.base_url), api_key="none", _strict_response_validation=True) as client:
        listed = list(client.models.list())
        assert [model.id for model in listed] == [MODEL, "alias"]
        one = client.models.retrieve("alias")
    assert (one.type, one.display_name, one.max_input_tokens) == ("model", "alias", 2048)
    assert one.created_at.timestamp() == 1_700_000_000


def test_the_path_that_is_served_is_a_name_too_but_nobody_is_told_of_it(http: httpx.Client) -> None:
    client = OpenAI(base_url=f"{http.base_url}/v1", api_key="none", _strict_response_validation=True)
    assert client.models.retrieve(FOLDER).root == "tiny-root"
    answer = client.completions.create(model=FOLDER, prompt="hi", max_tokens=2)
    assert answer.model == MODEL
    assert FOLDER not in {model.id for model in client.models.list()}
    with pytest.raises(NotFoundError) as refused:
        client.completions.create(model="/models/other", prompt="hi")
    assert FOLDER not in str(refused.value)


@pytest.mark.parametrize("name", [MODEL, "alias", "tiny%2Fmodel"])
def test_one_card(http: httpx.Client, name: str) -> None:
    card = ModelCard.model_validate(http.get(f"/v1/models/{name}").json())
    assert card.id == name.replace("%2F", "/")


def test_a_card_says_how_it_samples_by_default(http: httpx.Client) -> None:
    card = http.get(f"/v1/models/{MODEL}").json()
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert card["default_sampling"] == neutral
    assert card["permission"][0]["object"] == "model_permission"


def test_an_unknown_name(http: httpx.Client) -> None:
    response = http.get("/v1/models/other/model")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"
