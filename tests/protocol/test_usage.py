from __future__ import annotations

from openai.types import CompletionUsage

from tests.protocol.test_completions import USAGE


def test_usage_is_openais() -> None:
    usage = CompletionUsage.model_validate_json(USAGE.model_dump_json(), strict=True)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0
