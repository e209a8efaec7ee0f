from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.api.answers.choice_text import ScoredToken
from service.api.answers.completion_answer import CompletionAnswer
from service.api.answers.generation import CollectedChoice
from service.core.request import FinishReason
from service.core.token_logprobs import TokenLogprobs
from service.protocol.completions import CompletionChoice, CompletionResponse
from service.protocol.usage import Usage
from tests.api.answers.test_chunk_frames import CALL, prepared
from tests.api.answers.test_generation import TOKENIZER
from tests.api.running_server import RunningServer
from tests.api.wire import COMPLETIONS, completion, error_of, events_of, post, stream

PROMPT = TOKENIZER.encode("hi", add_special_tokens=False)
(A,) = TOKENIZER.encode("a", add_special_tokens=False)
SCORE = TokenLogprobs(-1.0, ((A, -0.5),), rank=2)
CHOICE = CollectedChoice(
    0, 0, "a", [A], PROMPT, FinishReason.STOP, None, (), [ScoredToken(A, TokenLogprobs(-0.5, ()), 0)]
)


class Scored:
    """A generation whose prompt was scored."""

    usage = Usage(prompt_tokens=2, completion_tokens=1, total_tokens=3, prompt_tokens_details=None)

    def prompt_token_ids(self, prompt_index: int) -> list[int]:
        return PROMPT

    def prompt_logprobs(self, prompt_index: int) -> tuple[TokenLogprobs, ...]:
        return (SCORE,)


def choice_of(echoes: list[str] | None, **asked: int | None) -> CompletionChoice:
    generation: Any = Scored()
    answer = CompletionAnswer(prepared(replace(CALL, **asked), echoes), generation).whole([CHOICE])
    (choice,) = CompletionResponse.model_validate_json(answer).choices
    return choice


def test_what_is_not_asked_for_is_not_there() -> None:
    shape = choice_of(None)
    assert shape.text == "a"
    assert shape.logprobs is None
    assert (shape.prompt_logprobs, shape.token_ids, shape.prompt_token_ids) == (None, None, None)
    assert {"prompt_logprobs", "token_ids", "prompt_token_ids"} <= shape.model_fields_set, "typed clients read them"


def test_an_echoed_prompts_logprobs_stand_before_the_outputs() -> None:
    shape = choice_of(["hi"], logprobs=1)
    assert shape.text == "hia"
    assert shape.logprobs is not None
    assert shape.logprobs.tokens == ["h", "i", "a"]
    assert shape.logprobs.token_logprobs == [None, -1.0, -0.5]
    assert shape.logprobs.text_offset == [0, 1, 2]


def test_prompt_logprobs_are_cut_to_what_was_asked_for() -> None:
    """The engine was asked for more, by an echo with logprobs."""
    shape = choice_of(["hi"], logprobs=1, prompt_logprobs=0)
    assert shape.prompt_logprobs is not None
    assert shape.prompt_logprobs[0] is None
    assert list(shape.prompt_logprobs[1] or {}) == [str(PROMPT[1])]


@pytest.mark.parametrize("stream", [False, True])
def test_echo(server: RunningServer, http: httpx.Client, stream: bool) -> None:
    server.say(" world")
    ids = server.tokenizer.encode("hello", add_special_tokens=False)
    for prompt in (["hello", "good day"], [ids, ids]):
        body = completion(prompt=prompt, echo=True, n=2, max_tokens=50, stream=stream)
        response = http.post(COMPLETIONS, json=body)
        choices = [e["choices"][0] for e in events_of(response.text)] if stream else response.json()["choices"]
        texts = ["".join(c["text"] for c in choices if c["index"] == index) for index in range(4)]
        second = "hello" if prompt[1] == ids else "good day"
        assert texts == ["hello world"] * 2 + [f"{second} world"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_max_tokens_0_and_logprobs_scores_and_generates_nothing(
    server: RunningServer, http: httpx.Client, stream: bool
) -> None:
    server.play(lambda prompt, so_far, seed: 1 // 0)
    ids = server.tokenizer.encode("hello", add_special_tokens=True)
    body = completion(prompt=[ids, [75, 10]], echo=True, logprobs=2, max_tokens=0, stream=stream)
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    response = http.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    if stream:
        *events, last = events_of(response.text)
        choices, usage = sorted((e["choices"][0] for e in events), key=lambda c: c["index"]), last["usage"]
    else:
        choices, usage = response.json()["choices"], response.json()["usage"]
    assert usage["completion_tokens"] == 0
    assert [choice["finish_reason"] for choice in choices] == ["length", "length"]
    first, second = choices
    assert first["text"] == "hello"
    assert first["logprobs"]["token_logprobs"] == [None, *(-i / 100 for i in ids[1:])]
    assert "".join(first["logprobs"]["tokens"][1:]) == "hello"
    assert first["logprobs"]["top_logprobs"][0] is None
    assert second["logprobs"]["token_logprobs"] == [None, -9999.0]
    assert len(second["logprobs"]["top_logprobs"][1]) == 3


def test_max_tokens_0_without_a_use_is_refused(http: httpx.Client) -> None:
    assert error_of(http.post(COMPLETIONS, json=completion(max_tokens=0)))["param"] == "max_tokens"
    assert http.post(COMPLETIONS, json=completion(max_tokens=0, echo=True)).json()["choices"][0]["text"] == "hello"


def test_a_prompt_that_is_only_scored_may_fill_the_context(server: RunningServer, http: httpx.Client) -> None:
    full = [75] * server.scene.max_model_len
    assert post(http, prompt=full, echo=True, logprobs=0, max_tokens=0)["usage"]["prompt_tokens"] == len(full)
    response = http.post(COMPLETIONS, json=completion(prompt=[*full, 75], echo=True, logprobs=0, max_tokens=0))
    assert error_of(response)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_streamed_are_logprobs_whole(server: RunningServer, http: httpx.Client, echo: bool) -> None:
    server.say("a 你 b")
    whole = post(http, logprobs=3, echo=echo, max_tokens=50, n=2)["choices"]
    events = stream(http, logprobs=3, echo=echo, max_tokens=50, n=2)
    for index, choice in enumerate(whole):
        parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [v for part in parts if part["logprobs"] for v in part["logprobs"][name]] == values, name


def test_a_long_echoed_prompt_is_scored_the_same_streamed_and_whole(server: RunningServer, http: httpx.Client) -> None:
    """Its logprobs are written on another thread."""
    server.say("ab")
    body: dict[str, Any] = {"prompt": [75, 80] * 900, "logprobs": 5, "echo": True, "max_tokens": 3}
    whole = post(http, **body)["choices"][0]["logprobs"]
    parts = [event["choices"][0]["logprobs"] for event in stream(http, **body)]
    assert len(whole["tokens"]) == 1803
    assert [offset for part in parts if part for offset in part["text_offset"]] == whole["text_offset"]
    assert [top for part in parts if part for top in part["top_logprobs"]] == whole["top_logprobs"]


def test_text_offsets_count_characters(server: RunningServer, http: httpx.Client) -> None:
    server.say("a你b")
    logprobs = post(http, prompt="héé", logprobs=0, echo=True, max_tokens=50)["choices"][0]["logprobs"]
    spelled = list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))
    *prompt, a, first, second, third, b, end = spelled
    assert (a, b) == (("a", 3), ("b", 5))
    assert [offset for _, offset in (first, second, third, end)] == [4, 4, 4, 6]
    assert first[0] == "bytes:\\xe4"
    assert prompt[-1][1] == 2
    assert logprobs["top_logprobs"][-2] == {"b": logprobs["token_logprobs"][-2]}


def test_logprobs_limits(http: httpx.Client) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        for value in (-2, 21):
            assert error_of(http.post(COMPLETIONS, json=completion(**{name: value})))["param"] == name
    response = http.post(COMPLETIONS, json=completion(prompt_logprobs=1, stream=True))
    assert error_of(response)["param"] == "prompt_logprobs"


def test_minus_one_asks_for_as_many_logprobs_as_the_server_gives(server: RunningServer, http: httpx.Client) -> None:
    server.say("xy")

    def choice(asked: int) -> Any:
        return post(http, prompt=[75, 3], logprobs=asked, prompt_logprobs=asked, max_tokens=2)["choices"][0]

    assert choice(-1) == choice(20) != choice(19)


def test_prompt_logprobs_are_vllms(server: RunningServer, http: httpx.Client) -> None:
    server.say("x")
    first, second = post(http, prompt=[75, 3], prompt_logprobs=1, max_tokens=1)["choices"][0]["prompt_logprobs"]
    assert first is None
    assert second["3"] == {"logprob": -0.03, "rank": 4, "decoded_token": server.tokenizer.decode([3])}
    assert second["0"]["rank"] == 1
    assert len(second) == 2
