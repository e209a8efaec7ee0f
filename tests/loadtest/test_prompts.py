import json

import pytest

from loadtest.prompts import BodyOptions, prompt_token_ids, request_body
from loadtest.trace import TraceRequest

OPTIONS = BodyOptions("m", vocab_size=500, min_token_id=10)


def test_prompts_have_the_exact_length_and_keep_the_vocabulary() -> None:
    ids = prompt_token_ids(TraceRequest(4, prompt_len=2000, prompt_seed=1), OPTIONS)
    assert len(ids) == 2000
    assert min(ids) == 10
    assert max(ids) == 499


def test_prompts_reproduce_and_differ_between_requests_and_seeds() -> None:
    requests = [
        TraceRequest(4, prompt_len=9),
        TraceRequest(5, prompt_len=9),
        TraceRequest(4, prompt_len=9, prompt_seed=1),
    ]
    prompts = [tuple(prompt_token_ids(request, OPTIONS)) for request in requests]
    assert prompts == [tuple(prompt_token_ids(request, OPTIONS)) for request in requests]
    assert len(set(prompts)) == 3


def test_a_group_shares_its_prefix_only() -> None:
    one, two, other = (
        prompt_token_ids(TraceRequest(i, prompt_len=5, prefix_len=20, prefix_group=group), OPTIONS)
        for i, group in ((0, 0), (1, 0), (2, 1))
    )
    assert one[:20] == two[:20] != other[:20]
    assert one[20:] != two[20:]


def test_completion_body() -> None:
    body = json.loads(request_body(TraceRequest(0, prompt_len=3, output_len=8, priority=2), OPTIONS, history=[1, 2]))
    assert body.pop("prompt")[:2] == [1, 2]
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
        "temperature": 0.0,
        "ignore_eos": True,
        "priority": 2,
    }


def test_extra_body_overrides_and_removes() -> None:
    options = BodyOptions("m", extra_body={"ignore_eos": None, "temperature": 1})
    body = json.loads(request_body(TraceRequest(0, prompt_len=3), options))
    assert "ignore_eos" not in body
    assert body["temperature"] == 1


@pytest.mark.parametrize(("share", "asking"), [(0.0, 0), (0.5, 5), (0.3, 3), (1.0, 10)])
def test_a_share_of_the_requests_asks_to_be_deterministic(share: float, asking: int) -> None:
    """The first one, if any."""
    options = BodyOptions("m", deterministic_share=share)
    bodies = [json.loads(request_body(TraceRequest(i, prompt_len=3), options)) for i in range(10)]
    assert sum(body.get("deterministic", False) for body in bodies) == asking
    assert bodies[0].get("deterministic", False) == (share > 0)
    with pytest.raises(ValueError, match="deterministic_share"):
        BodyOptions("m", deterministic_share=1.5)


def test_chat_body_has_a_word_a_token_and_tools_when_asked() -> None:
    options = BodyOptions("m", endpoint_type="openai-chat")
    body = json.loads(request_body(TraceRequest(0, prompt_len=12, tools=True), options))
    assert len(body["messages"][0]["content"].split()) == 12
    assert body["tool_choice"] == "required"


def test_what_an_endpoint_cannot_express_is_refused() -> None:
    with pytest.raises(ValueError, match="chat endpoint"):
        request_body(TraceRequest(0, tools=True), OPTIONS)
    with pytest.raises(ValueError, match="completions"):
        request_body(TraceRequest(0, prompt_len=3, conversation_id=1), BodyOptions("m", endpoint_type="openai-chat"))
    with pytest.raises(ValueError, match="min_token_id"):
        BodyOptions("m", vocab_size=5, min_token_id=5)
