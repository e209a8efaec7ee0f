from __future__ import annotations

from service.protocol.trace import PromptTrace, RequestTrace


def test_what_did_not_happen_is_null() -> None:
    prompt = PromptTrace(index=0, outcome="running", prompt_tokens=3, n=1, max_tokens=5)
    trace = RequestTrace(id="x", request_id="y", created=1, model="m", outcome="running", prompts=[prompt]).model_dump()
    assert trace["object"] == "request.trace"
    assert trace["prompts"][0]["first_token_s"] is None
