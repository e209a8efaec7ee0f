from __future__ import annotations

import httpx

from service.api.endpoints.tokenizer_info import shown
from tests.text import tiny_tokenizers


def test_shows_the_configuration_and_no_path() -> None:
    options = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "name_or_path": "/srv/secret"}
    assert shown(options) == {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    assert "tokenizer_class" in shown({})


def test_answers_with_the_chat_template_that_is_used(http: httpx.Client) -> None:
    info = http.get("/tokenizer_info").json()
    assert info["chat_template"] == tiny_tokenizers.CHAT_TEMPLATE
    assert info["tokenizer_class"]
