"""A model with vision, started by its folder's path: served for text, under that path too; images are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from service.settings.quickstart import QUICKSTART_MODEL
from tests.e2e.server_process import ServerProcess
from tests.e2e.strict_client import strict_client
from tests.equivalence.family_list import FAMILIES, Family

VOCAB_SIZE = 3072
"""The quickstart's, whose tokenizer and template are taken."""
HELLO = [{"role": "user", "content": "Hello"}]
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def with_vision(name: str, text: Mapping[str, Any]) -> Family:
    (family,) = (each for each in FAMILIES if each.name == name)
    return replace(family, text={**(family.text or {}), "vocab_size": VOCAB_SIZE, **text})


@pytest.fixture(scope="module", params=["Gemma 3 (with vision)", "Qwen2.5-VL"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "seeing"
    with_vision(request.param, {"max_position_embeddings": 512}).save(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((QUICKSTART_MODEL / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[OpenAI]:
    sizes = ("--device", "cpu", "--dtype", "float32", "--kv-cache-memory", "16MiB", "--max-model-len", "0.4k")
    with ServerProcess(f"{folder}/", *sizes) as server, strict_client(server.url) as client:
        yield client


def test_it_is_served_for_text_under_its_name_and_its_path(client: OpenAI, folder: Path):
    (card,) = client.models.list()
    assert (card.id, card.model_extra["max_model_len"]) == ("seeing", 400)
    asked: dict[str, Any] = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
    texts = set()
    for name in ("seeing", str(folder), f"{folder}/"):
        assert client.models.retrieve(name).root == "seeing"
        answer = client.chat.completions.create(model=name, **asked)
        assert answer.usage is not None and answer.usage.completion_tokens == 8
        texts.add(answer.choices[0].message.content)
    assert len(texts) == 1
    with pytest.raises(openai.NotFoundError, match="does not exist; this server has 'seeing'"):
        client.models.retrieve(str(folder.parent))


def test_an_image_is_refused_by_name(client: OpenAI):
    seen = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    with pytest.raises(openai.BadRequestError, match="image_url") as refused:
        client.chat.completions.create(model="seeing", messages=[{"role": "user", "content": seen}], max_tokens=4)
    assert refused.value.param is not None and "messages" in refused.value.param
    shown = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": PIXEL, "detail": "auto"}]
    with pytest.raises(openai.BadRequestError, match="input_image"):
        client.responses.create(model="seeing", input=[{"role": "user", "content": shown}])
