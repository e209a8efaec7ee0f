"""What is drawn from the narrowed description is answered: by the real app, whatever else changes in its fields."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from loadtest.sensible_calls import SENSIBLE, accepted, count, narrowed
from service.api.endpoints.openapi import describe
from service.config import ApiConfig
from tests.api.running_server import MODEL, Scene, running
from tests.examples import examples
from tests.text import tiny_tokenizers

PATHS = {
    "CompletionRequest": "/v1/completions",
    "ChatRequest": "/v1/chat/completions",
    "ChatBatchRequest": "/v1/chat/completions/batch",
    "ResponsesRequest": "/v1/responses",
    "MessagesRequest": "/v1/messages",
    "CompactRequest": "/v1/responses/compact",
    "CountTokensRequest": "/v1/messages/count_tokens",
    "TokenizeRequest": "/tokenize",
    "TokenizeChatRequest": "/tokenize",
    "DetokenizeRequest": "/detokenize",
}
DESCRIPTION = describe(ApiConfig(served_model_names=(MODEL,)))


def drawn(schema: dict[str, Any], chance: random.Random) -> Any:
    """Something that the schema allows."""
    for key in ("enum", "anyOf"):
        if key in schema:
            picked = chance.choice(schema[key])
            return picked if key == "enum" else drawn(picked, chance)
    if "const" in schema:
        return schema["const"]
    low, high = schema.get("minimum", 0), schema.get("maximum", 1)
    match schema["type"]:
        case "object":
            names = [n for n in schema["properties"] if n in schema["required"] or chance.random() < 0.3]
            return {name: drawn(schema["properties"][name], chance) for name in names}
        case "array":
            length = chance.randint(schema.get("minItems", 0), schema["maxItems"])
            return [drawn(schema["items"], chance) for _ in range(length)]
        case "string":
            return "".join(chance.choices("abc", k=chance.randint(1, 8)))
        case "integer":
            return chance.randint(low, high)
        case "number":
            return chance.uniform(low, high)
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
    raise AssertionError(schema)


@pytest.mark.parametrize("shape", sorted(SENSIBLE))
def test_what_is_drawn_is_answered(shape: str) -> None:
    schemas = narrowed(DESCRIPTION)["components"]["schemas"]
    if shape not in schemas:
        pytest.skip("this server has no such endpoint")
    chance, number = random.Random(1), examples(30)
    with (
        running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server,
        httpx.Client(base_url=server.base_url, timeout=30) as http,
    ):
        server.say("so it is")
        answers = [http.post(PATHS[shape], json=drawn(schemas[shape], chance)) for _ in range(number)]
    refused = [answer.text[:200] for answer in answers if answer.status_code != 200]
    assert not [answer for answer in answers if answer.status_code >= 500]
    assert len(refused) <= number // 10, refused


def test_what_needs_more_than_its_body_is_left_out() -> None:
    posts = {path for path, operations in narrowed(DESCRIPTION)["paths"].items() if "post" in operations}
    assert set(PATHS.values()) <= posts
    assert not [path for path in posts if "{" in path or "adapter" in path]
    assert posts.isdisjoint(("/v1/files", "/v1/batches", "/v1/fine_tuning/jobs", "/v1/embeddings", "/ping"))
    assert "get" in narrowed(DESCRIPTION)["paths"]["/ping"]


def test_a_field_that_is_described_no_longer_is_a_fault() -> None:
    description = json.loads(json.dumps(DESCRIPTION))
    del description["components"]["schemas"]["ChatRequest"]["properties"]["temperature"]
    with pytest.raises(KeyError, match="ChatRequest has no field temperature"):
        narrowed(description)


def test_answers_to_posts_are_counted() -> None:
    def entry(method: str, path: str, status: int) -> dict[str, Any]:
        return {"request": {"method": method, "url": f"http://x{path}?a=b"}, "response": {"status": status}}

    entries = [entry("POST", "/a", 200), entry("POST", "/a", 400), entry("GET", "/a", 500), entry("POST", "/b", 200)]
    answers = count({"log": {"entries": entries}})
    assert answers == {"/a": Counter({200: 1, 400: 1}), "/b": Counter({200: 1})}
    assert accepted(answers.values()) == pytest.approx(2 / 3)
    assert accepted([]) == 0
