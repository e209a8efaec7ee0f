"""The byte templates make what the wire shapes, and OpenAI's own types, describe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from service.api.answers.chat_answer import ChatAnswer
from service.api.answers.choice_text import Piece
from service.api.answers.chunk_frames import ChunkFrames, whole_json
from service.api.answers.completion_answer import CompletionAnswer
from service.api.answers.generation import Generation
from service.api.call_head import CallHead
from service.api.calls.output_form import CompiledForm
from service.api.calls.prepared_call import CallPrompts, PreparedCall
from service.api.calls.validation import CheckedCall, check_call
from service.api.calls.wire_parsing import parse
from service.api.serving_state import GenerationDefaults, ServedModel
from service.config import ApiConfig
from service.core.request import FinishReason
from service.engine.async_engine import AsyncEngine
from service.protocol.chat import ChatChunk
from service.protocol.completions import CompletionChoice, CompletionChunk, CompletionRequest, CompletionResponse
from service.protocol.usage import Usage
from service.text.stop_strings import StopRules
from tests.api.answers.test_generation import TOKENIZER, HandFedEngine, requests

MODEL = 'name/with "quotes"'
PIECES = st.builds(
    Piece,
    choice_index=st.integers(0, 9),
    prompt_index=st.just(0),
    text=st.text(max_size=20),
    token_ids=st.lists(st.integers(0, 10**6), max_size=4),
    is_first=st.booleans(),
    finish_reason=st.sampled_from([None, *FinishReason]),
    stop_reason=st.sampled_from([None, "END", 7]),
    deltas=st.just(()),
    has_calls=st.just(False),
    scored=st.just(()),
)
CALLS = st.builds(
    lambda ids, usage, continuous: replace(
        CALL, return_token_ids=ids, include_usage=usage, continuous_usage=continuous
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def _call() -> CheckedCall:
    config = ApiConfig(served_model_names=(MODEL,))
    return check_call(parse(CompletionRequest, {"model": MODEL, "prompt": "x"}), config, GenerationDefaults())


CALL = _call()


def prepared(call: CheckedCall, echoes: Sequence[str] | None = None) -> PreparedCall:
    engine, prompts = cast(AsyncEngine, HandFedEngine()), CallPrompts([[5, 6]], "prompt", echoes=echoes)
    model = ServedModel(engine, TOKENIZER, None, "m", 0, 100, 1000, frozenset())
    return PreparedCall(CallHead("id-1", 1_700_000_000, 0.0, ""), model, call, prompts, CompiledForm())


def generation() -> Generation:
    return Generation(cast(AsyncEngine, HandFedEngine()), TOKENIZER, requests(1), StopRules())


def events_of(frames: bytes) -> list[Any]:
    events = frames.decode().split("\n\n")
    assert events.pop() == ""
    return [json.loads(event.removeprefix("data: ")) for event in events]


def check_common(event: Any, piece: Piece, call: CheckedCall) -> None:
    assert (event["id"], event["created"], event["model"]) == ("id-1", 1_700_000_000, MODEL)
    assert event["system_fingerprint"] == prepared(call).model.system_fingerprint
    assert event["choices"][0]["index"] == piece.choice_index
    assert ("usage" in event) == call.include_usage
    assert bool(event.get("usage")) == (call.include_usage and call.continuous_usage)


@given(PIECES, CALLS)
def test_completion_chunks(piece: Piece, call: CheckedCall) -> None:
    (event,) = events_of(CompletionAnswer(prepared(call, ["echo "]), generation()).frame(piece))
    check_common(event, piece, call)
    CompletionChunk.model_validate(event, strict=True)
    if piece.finish_reason is not None:  # OpenAI's type wants a reason, although OpenAI's own streams send null
        Completion.model_validate(event, strict=True)
    choice = event["choices"][0]
    assert choice["text"] == ("echo " if piece.is_first else "") + piece.text
    assert choice.get("stop_reason") == (piece.stop_reason if piece.finish_reason else None)
    assert choice["finish_reason"] == piece.finish_reason
    assert choice.get("token_ids") == (piece.token_ids if call.return_token_ids else None)
    assert ("prompt_token_ids" in choice) == (call.return_token_ids and piece.is_first)


@given(PIECES, CALLS)
def test_chat_chunks(piece: Piece, call: CheckedCall) -> None:
    events = events_of(ChatAnswer(prepared(call), generation()).frame(piece))
    for event in events:
        check_common(event, piece, call)
        ChatChunk.model_validate(event, strict=True)
        ChatCompletionChunk.model_validate(event, strict=True)
    with_prompt = [event for event in events if "prompt_token_ids" in event]
    assert len(with_prompt) == (call.return_token_ids and piece.is_first and piece.choice_index == 0)
    if piece.is_first and events[0].get("usage"):
        assert (events[0]["usage"]["completion_tokens"], events[0]["usage"]["total_tokens"]) == (0, 2)
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == piece.text
    assert sum(choice["delta"].get("role") == "assistant" for choice in choices) == piece.is_first
    if piece.finish_reason is not None:
        assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, piece.finish_reason)
    with_ids = [choice for choice in choices if "token_ids" in choice]
    assert len(with_ids) == (call.return_token_ids and bool(piece.text or piece.finish_reason))


@pytest.mark.parametrize("kind", [b"text_completion", b"chat.completion.chunk"])
def test_the_usage_chunk(kind: bytes) -> None:
    assert ChunkFrames(kind, prepared(CALL), generation()).usage() == b""
    (event,) = events_of(ChunkFrames(kind, prepared(replace(CALL, include_usage=True)), generation()).usage())
    assert event["choices"] == []
    assert event["usage"]["prompt_tokens"] == 2
    (Completion if kind == b"text_completion" else ChatCompletionChunk).model_validate(event, strict=True)


@pytest.mark.parametrize("num_choices", [0, 1, 3])
def test_choice_by_choice_the_answer_is_what_it_is_in_one_piece(num_choices: int) -> None:
    text = 'says "choices":[] and ,'
    choices = [CompletionChoice(index=i, text=text, finish_reason="stop") for i in range(num_choices)]
    usage = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details=None)
    answer = CompletionResponse(id=text, created=1, model=text, system_fingerprint=None, choices=choices, usage=usage)
    assert whole_json(answer) == answer.model_dump_json(exclude_unset=True)
