from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from service.api.calls.compaction import MOST_SUMMARY_TOKENS
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import error_of
from tests.text import tiny_tokenizers

COMPACT = "/v1/responses/compact"
CALL = [
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "So."}]},
    {"type": "function_call", "call_id": "c", "name": "rain", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "7 mm"},
]
TALK: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Oslo?"},
    *CALL,
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": [{"type": "input_text", "text": "And Rome?"}]},
]


@pytest.fixture(scope="module")
def storing() -> Iterator[RunningServer]:
    config = replace(Scene().config, responses_store_bytes=1_000_000)
    with running(Scene(config=config, chat_template=tiny_tokenizers.TOOL_TEMPLATE, max_model_len=4096)) as server:
        yield server


@pytest.fixture
def client(storing: RunningServer) -> Iterator[OpenAI]:
    """Not strict: openai-python has no type for the user's messages in what OpenAI itself gives back."""
    storing.reset()
    with OpenAI(base_url=f"{storing.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client
    storing.check_idle()


def compact(client: OpenAI, **fields: Any) -> Any:
    return client.responses.compact(**{"model": MODEL, "input": TALK, **fields})


def post(server: RunningServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}{COMPACT}", json=body)


def test_what_the_user_said_stays_and_a_summary_stands_for_the_rest(storing: RunningServer, client: OpenAI) -> None:
    ids = storing.say("<think>Hm.</think>Rain in Oslo, 7 mm.")
    compacted = compact(client)
    assert (compacted.object, compacted.id[:5]) == ("response.compaction", "resp_")
    assert [(item.type, getattr(item, "role", None)) for item in compacted.output] == [
        ("message", "developer"),
        ("message", "user"),
        ("message", "user"),
        ("compaction", None),
    ]
    assert compacted.usage.output_tokens == len(ids)
    said = compacted.output[2].model_dump(exclude_unset=True, warnings=False)["content"]
    assert said == [{"type": "input_text", "text": "And Rome?"}]


def test_its_output_is_the_input_of_what_follows(storing: RunningServer, client: OpenAI) -> None:
    storing.say("Rain in Oslo, 7 mm.")
    shorter: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compact(client).output]
    news = {"role": "user", "content": "And Paris?"}
    goes_on = client.responses.create(model=MODEL, input=[*shorter, news])
    told = {"role": "assistant", "content": "Summary of our conversation so far:\nRain in Oslo, 7 mm."}
    by_hand = [TALK[0], TALK[1], TALK[-1], told, news]
    assert goes_on.usage is not None
    assert goes_on.usage.input_tokens == client.responses.input_tokens.count(model=MODEL, input=by_hand).input_tokens
    listed = client.responses.input_items.list(goes_on.id, order="asc").data
    assert [item.type for item in listed] == ["message", "message", "message", "compaction", "message"]
    again = compact(client, input=[*shorter, news])
    assert [item.type for item in again.output] == ["message"] * 4 + ["compaction"]


def test_of_a_conversation_that_is_kept(storing: RunningServer, client: OpenAI) -> None:
    storing.say("Seven.")
    first = client.responses.create(model=MODEL, input="3 + 4?", instructions="Count.")
    compacted = compact(client, input=None, previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert compacted.output[0].content[0].text == "3 + 4?"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(compacted.id)


def test_the_model_is_asked_in_the_users_last_message_if_that_was_the_last(
    storing: RunningServer, client: OpenAI
) -> None:
    """A template may not take two messages of the user's; the tiny one counts them by their marks."""
    storing.say("x")
    asked_within = compact(client, input=TALK).usage.input_tokens
    asked_alone = compact(client, input=[*TALK, {"role": "assistant", "content": "-"}]).usage.input_tokens
    both = client.responses.input_tokens.count(model=MODEL, input=TALK).input_tokens
    assert both < asked_within < asked_alone


def test_a_summary_has_its_bounds(storing: RunningServer, client: OpenAI) -> None:
    storing.play(lambda prompt, so_far, seed: 75)
    assert compact(client, input="x").usage.output_tokens == MOST_SUMMARY_TOKENS
    usage = compact(client, input="x" * 3000).usage
    assert usage.total_tokens == 4096
    with pytest.raises(openai.BadRequestError) as refused:
        compact(client, input="x" * 5000)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


def test_without_a_summary_there_is_nothing_to_go_on_from(storing: RunningServer, client: OpenAI) -> None:
    storing.say("<think>Hm.</think> \n")
    with pytest.raises(openai.BadRequestError) as refused:
        compact(client)
    assert refused.value.code == "no_summary"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "background": True}, "background"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
        ({"input": "a", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": "a", "model": "other"}, "model"),
    ],
)
def test_refusals_name_the_field(storing: RunningServer, client: OpenAI, body: dict[str, Any], param: str) -> None:
    refused = post(storing, **body)
    assert (refused.status_code // 100, error_of(refused)["param"]) == (4, param)


def test_what_has_no_meaning_here_is_named(storing: RunningServer, client: OpenAI) -> None:
    storing.say("x")
    answer = post(storing, input="a", tools=[], sparkle=1, prompt_cache_retention="24h", prompt_cache_key="k")
    assert answer.status_code == 200
    assert answer.headers["x-ignored-params"] == "tools,sparkle"
    assert answer.json()["output"][0]["content"] == [{"type": "input_text", "text": "a"}]
