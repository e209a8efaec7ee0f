from __future__ import annotations

import httpx

from service.api.endpoints.tokenizer_info import shown
from tests.api.running_server import Scene, running
from tests.text import tiny_tokenizers


def test_shows_the_configuration_and_no_path() -> None:
    options = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "name_or_path": "/srv/secret"}
    assert shown(options) == {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    assert "tokenizer_class" in shown({})


def test_a_limit_that_stands_for_none_is_shown() -> None:
    """Most published models have it, and it has more than 64 bits."""
    with running(Scene(ready=False)) as server:
        server.make_ready(tokenizer_options={"model_max_length": int(1e30), "eos_token": "é"})
        info = httpx.get(f"{server.base_url}/tokenizer_info").json()
    assert (info["model_max_length"], info["eos_token"]) == (int(1e30), "é")


def test_answers_with_the_chat_template_that_is_used(http: httpx.Client) -> None:
    info = http.get("/tokenizer_info").json()
    assert info["chat_template"] == tiny_tokenizers.CHAT_TEMPLATE
    assert info["tokenizer_class"]
