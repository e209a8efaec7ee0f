from __future__ import annotations

from service.protocol.render import RenderedPrompt, RenderedSampling


def test_has_the_fields_that_routers_read_and_says_null_for_what_is_not_there() -> None:
    """llm-d reads `token_ids` and `features`; vLLM's GenerateRequest wants `sampling_params`."""
    assert {"request_id", "token_ids", "features", "sampling_params", "model", "stream"} <= set(
        RenderedPrompt.model_fields
    )
    assert {"n", "max_tokens", "temperature", "stop", "seed"} <= set(RenderedSampling.model_fields)
