"""Grammars whose literals hold the text of tokens that were added to a vocabulary, as those of Qwen, Hermes, Llama and
Mistral are: what is asked for is written, and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from service.config import ApiConfig
from tests.api.running_server import END_ID, MODEL, RunningServer, Scene, running
from tests.e2e.strict_client import strict_client
from tests.examples import examples
from tests.text import tiny_tokenizers

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How warm is it in Oslo?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
PARSER = {"qwen2.5": "hermes", "qwen3": "hermes", "hermes": "hermes", "llama3": "llama3_json", "mistral": "mistral"}
CALLS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>',
    "llama3_json": '{"name": "weather", "parameters": {"city": "Oslo", "unit": "C"}}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}]',
}


def tool(*, strict: bool) -> Any:
    return {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": strict}}


@pytest.fixture(scope="module", params=list(tiny_tokenizers.ADDED_TOKENS))
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    config = ApiConfig(served_model_names=(MODEL,), tool_call_parser=PARSER[request.param])
    with running(
        Scene(config=config, chat_template=tiny_tokenizers.TOOL_TEMPLATE, added_tokens=request.param)
    ) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    with strict_client(server.base_url) as client:
        yield client


def wander(server: RunningServer) -> None:
    """A model that draws at random what its grammar allows, after a while the end if that is allowed, and has
    no thoughts."""
    size = server.tokenizer.num_tokens
    think, end_think = (server.tokenizer.id_of(mark) for mark in ("<think>", "</think>"))
    ends = (END_ID, server.tokenizer.encode("]", add_special_tokens=False)[-1])
    assert end_think is not None

    def draw(prompt: Sequence[int], so_far: Sequence[int], seed: int) -> int:
        if so_far and so_far[-1] == think:
            return end_think
        drawn = hash((seed, len(so_far), *so_far[-4:]))
        return ends[drawn % 2] if len(so_far) > 100 else drawn % size

    server.play(draw)


def calls_of(client: OpenAI, *, stream: bool, **fields: Any) -> list[tuple[str, Any]]:
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    ask: Any = {"model": MODEL, "messages": QUESTION, "extra_body": extra, "max_tokens": 1200, **fields}
    if not stream:
        message = client.chat.completions.create(**ask).choices[0].message
        assert not message.content
        found = message.tool_calls or []
        return [(call.function.name, json.loads(call.function.arguments)) for call in found if call.type == "function"]
    calls: list[list[str]] = []
    for chunk in client.chat.completions.create(**ask, stream=True):
        delta = chunk.choices[0].delta
        assert not delta.content
        for part in delta.tool_calls or []:
            assert part.function is not None
            if part.function.name:
                calls.append([part.function.name, ""])
            calls[part.index][1] += part.function.arguments or ""
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.pairwise
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "single"])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
)
def test_a_call_that_must_be_made_is_made(
    server: RunningServer, client: OpenAI, choice: Any, parallel: bool, stream: bool
) -> None:
    wander(server)
    for seed in range(examples(2)):
        calls = calls_of(
            client,
            stream=stream,
            tools=[tool(strict=True)],
            tool_choice=choice,
            parallel_tool_calls=parallel,
            seed=seed,
        )
        assert calls
        assert parallel or len(calls) == 1
        for name, arguments in calls:
            assert name == "weather"
            assert arguments.keys() == {"city", "unit"}
            assert arguments["unit"] in ("C", "F")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("strict", "parallel"), [(True, True), (False, False)], ids=["strict", "single"])
def test_a_call_that_may_be_made_may_use_the_models_own_tokens(
    server: RunningServer, client: OpenAI, strict: bool, parallel: bool, stream: bool
) -> None:
    parser = server.scene.config.tool_call_parser
    said = server.say(CALLS[parser])
    own = {server.tokenizer.id_of(mark) for mark in ("<tool_call>", "[TOOL_CALLS]")} - {None}
    assert bool(own & set(said)) is (parser != "llama3_json"), "it says its own token"
    calls = calls_of(client, stream=stream, tools=[tool(strict=strict)], parallel_tool_calls=parallel)
    assert calls == [("weather", {"city": "Oslo", "unit": "C"})]


MARKS = ["<tool_call>", "<think>", "<|im_end|>", "<|python_tag|>", "[TOOL_CALLS]", "<tools>"]
FORMS: dict[str, Any] = {
    "choice": lambda mark: {"choice": [f"{mark}a", f"b{mark}"]},
    "regex": lambda mark: {"regex": f"{mark.replace('|', '[|]').replace('[T', '.T').replace('S]', 'S.')}[a-c]"},
    "lark": lambda mark: {"grammar": f'start: "{mark}" /[a-c]/'},
    "gbnf": lambda mark: {"grammar": f'root ::= "{mark}" [a-c]'},
    "enum": lambda mark: {"guided_json": {"enum": [mark, f"{mark}{mark}"]}},
    "const": lambda mark: {"guided_json": {"const": {mark: f"of {mark}"}}},
    "pattern": lambda mark: {"guided_json": {"type": "string", "pattern": "^<[a-z]{1,9}>$"}},
}


@pytest.mark.pairwise
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", MARKS)
def test_a_clients_literal_is_written_whatever_tokens_its_text_is(
    server: RunningServer, client: OpenAI, form: str, mark: str
) -> None:
    """Of a special token the text alone: what is no text leaves none."""
    wander(server)
    for seed in range(examples(1)):
        answer = client.completions.create(
            model=MODEL, prompt="A", extra_body=FORMS[form](mark), seed=seed, max_tokens=400
        )
        assert answer.choices[0].finish_reason == "stop"
        text = answer.choices[0].text
        match form:
            case "choice":
                assert text in (f"{mark}a", f"b{mark}")
            case "enum":
                assert json.loads(text) in (mark, mark * 2)
            case "const":
                assert json.loads(text) == {mark: f"of {mark}"}
            case "pattern":
                assert json.loads(text).startswith("<")
            case _:
                assert text[:-1] == mark or form == "regex"
                assert text[-1] in "abc"


def test_a_model_may_write_a_literal_by_its_own_token(server: RunningServer, client: OpenAI) -> None:
    for mark, is_special in tiny_tokenizers.ADDED_TOKENS[str(server.scene.added_tokens)].items():
        if is_special:
            continue
        said = server.say(f"{mark}a")
        assert said[0] == server.tokenizer.id_of(mark)
        for extra in ({"choice": [f"{mark}a"]}, {"grammar": f'start: {mark} "a"'}, {"grammar": f'start: "{mark}a"'}):
            answer = client.completions.create(model=MODEL, prompt="A", extra_body=extra, max_tokens=30)
            assert answer.choices[0].text == f"{mark}a"
