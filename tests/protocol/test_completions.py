from __future__ import annotations

import time
from typing import Any

import pytest
from openai.types import Completion
from pydantic import ValidationError

from service.protocol.completions import CompletionChoice, CompletionRequest, CompletionResponse
from service.protocol.usage import PromptTokensDetails, Usage

USAGE = Usage(
    prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details=PromptTokensDetails(cached_tokens=0)
)


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompts(prompt: Any) -> None:
    assert CompletionRequest.model_validate({"model": "m", "prompt": prompt}).prompt == prompt


@pytest.mark.parametrize("prompt", [1, [1, "a"], [[1], "a"], [1.0], [True], [["a"]], [[[1]]], {}, None])
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(ValidationError):
        CompletionRequest.model_validate({"model": "m", "prompt": prompt})


@pytest.mark.parametrize("prompt", [[1.5] * 300_000, [["a"] * 1000] * 300, list(range(300_000)), ["a"] * 300_000 + [1]])
def test_a_large_prompt_is_read_or_refused_quickly(prompt: Any) -> None:
    started_s = time.thread_time()
    try:
        CompletionRequest.model_validate({"model": "m", "prompt": prompt})
    except ValidationError as refusal:
        assert refusal.error_count() <= 4
    assert time.thread_time() - started_s < 0.5


def test_the_response_is_openais() -> None:
    choice = CompletionChoice(index=0, text="x", logprobs=None, finish_reason="stop")
    response = CompletionResponse(
        id="i", object="text_completion", created=1, model="m", system_fingerprint="fp_1", choices=[choice], usage=USAGE
    )
    json = response.model_dump_json(exclude_unset=True)
    Completion.model_validate_json(json, strict=True)
    assert "token_ids" not in json
    assert '"logprobs":null' in json
