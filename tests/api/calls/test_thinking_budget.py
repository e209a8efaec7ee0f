"""The scripted model would think on and on; the budget decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.messages_wire import MESSAGES, ask
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of
from tests.text import tiny_tokenizers

RESPONSES = "/v1/responses"
THINKS = {"chat_template_kwargs": {"thinking": True}}
"""The prompt then ends with `<think>` and a line's end, which is one token."""


@pytest.fixture(scope="module")
def _able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


@pytest.fixture
def able(_able: RunningServer) -> RunningServer:
    """Says its position on and on, as long as it may; in the reasoning if the prompt has begun it."""
    digits = [_able.tokenizer.encode(digit, add_special_tokens=False)[0] for digit in "0123456789"]
    _able.play(lambda prompt, so_far, seed: digits[len(so_far) % 10])
    return _able


def post(server: RunningServer, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.base_url}{path}", json=body)


def whole(server: RunningServer, **fields: Any) -> dict[str, Any]:
    answer = post(server, CHAT, chat(max_tokens=12, **fields))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("budget", [2, 5, 9])
def test_a_chat_thinks_so_long_and_then_answers(able: RunningServer, budget: int) -> None:
    """What the template has put behind `<think>` counts, as at vLLM."""
    able_ids = whole(able, thinking_token_budget=budget, return_token_ids=True, n=2, **THINKS)
    end = able.tokenizer.id_of("</think>")
    for choice in able_ids["choices"]:
        assert choice["token_ids"].index(end) == budget - 1
        said, thought = choice["message"]["content"], choice["message"]["reasoning"]
        assert (thought, said) == ("0123456789"[: budget - 1], "01234567890"[budget:] + "1"[: 12 - 11])
    assert able_ids["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_a_stream_says_the_same(able: RunningServer) -> None:
    fields = {"thinking_token_budget": 4, **THINKS}
    events = events_of(post(able, CHAT, chat(stream=True, max_tokens=12, **fields)).text)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    message = whole(able, **fields)["choices"][0]["message"]
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == message["reasoning"] == "012"
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]


@pytest.mark.parametrize("fields", [{}, {"thinking_token_budget": None}, {"thinking_token_budget": -1}])
def test_without_a_budget_it_thinks_as_long_as_it_likes(able: RunningServer, fields: dict[str, Any]) -> None:
    message = whole(able, **fields, **THINKS)["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("012345678901", "")


def test_one_that_does_not_think_is_left_alone(able: RunningServer) -> None:
    message = whole(able, thinking_token_budget=0)["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == (None, "012345678901")


def test_a_form_is_held_to_behind_the_reasoning(able: RunningServer) -> None:
    message = whole(able, thinking_token_budget=4, regex="[a-z]{2}", **THINKS)["choices"][0]["message"]
    assert message["reasoning"] == "012"
    assert message["content"].isalpha()
    assert len(message["content"]) == 2


def test_a_response_and_a_message_of_anthropics_have_it_too(able: RunningServer) -> None:
    body = {"input": "hello", "max_output_tokens": 12, "thinking_token_budget": 4, **THINKS}
    output = post(able, RESPONSES, body).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[0]["content"][0]["text"] == "012"
    thinking = {"type": "enabled", "budget_tokens": 4}
    answer = post(able, MESSAGES, ask(thinking=thinking) | {"max_tokens": 12})
    assert "x-ignored-params" not in answer.headers
    assert [block["type"] for block in answer.json()["content"]] == ["thinking", "text"]
    assert answer.json()["content"][0]["thinking"] == "012"


def test_a_completions_prompts_are_looked_at_each(able: RunningServer) -> None:
    prompts = ["<think>ab", "<think>a</think>", "none"]
    body = completion(prompt=prompts, max_tokens=6, thinking_token_budget=3, skip_special_tokens=False)
    texts = [choice["text"] for choice in post(able, COMPLETIONS, body).json()["choices"]]
    assert texts[1:] == ["012345", "012345"]
    num_there = len(able.tokenizer.encode("ab", add_special_tokens=False))
    assert texts[0].index("</think>") == 3 - num_there


@pytest.mark.parametrize("budget", [-2, 0.5, "3", 2**63])
def test_what_is_no_budget_is_refused(able: RunningServer, budget: object) -> None:
    answer = post(able, CHAT, chat(thinking_token_budget=budget))
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "thinking_token_budget"


@pytest.mark.parametrize(
    "fields",
    [
        {"use_beam_search": True, "beam_width": 2},
        {"allowed_token_ids": [7, 8]},
        {"min_tokens": 2, "stop_token_ids": "end of thinking"},
    ],
)
def test_the_end_of_the_thinking_must_be_possible(able: RunningServer, fields: dict[str, Any]) -> None:
    end = able.tokenizer.id_of("</think>")
    fields = {name: [end] if value == "end of thinking" else value for name, value in fields.items()}
    answer = post(able, CHAT, chat(max_tokens=5, thinking_token_budget=1, temperature=0, **fields))
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "thinking_token_budget"


def test_a_model_without_an_end_of_thinking_says_so(able: RunningServer) -> None:
    """Its logits are fewer than its tokenizer's tokens, so that it has none."""
    scene = Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE, vocab_size=able.tokenizer.id_of("<think>"))
    with running(scene) as server, httpx.Client(base_url=server.base_url) as http:
        for path, body in ((CHAT, chat()), (COMPLETIONS, completion())):
            answer = http.post(path, json=body | {"thinking_token_budget": 3})
            assert answer.status_code == 400
            assert error_of(answer)["code"] == "unsupported_parameter"
            assert error_of(answer)["param"] == "thinking_token_budget"
            assert http.post(path, json=body | {"thinking_token_budget": -1}).status_code == 200
        thinking = {"type": "enabled", "budget_tokens": 4}
        unmarked = {"chat_template_kwargs": {"thinking": False}}  # else the prompt itself has a mark
        answer = http.post(MESSAGES, json=ask(thinking=thinking, **unmarked))
        assert "thinking.budget_tokens" in answer.headers["x-ignored-params"]
