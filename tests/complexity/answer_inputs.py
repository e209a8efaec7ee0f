"""Worst inputs of an answer: a model's words and log probabilities, on their way to the client."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson

from service.api.answers.chat_answer import ChatAnswer, assemble_message
from service.api.answers.choice_text import Piece, ScoredToken
from service.api.answers.completion_answer import CompletionAnswer
from service.api.answers.generation import CollectedChoice, Generation
from service.api.answers.response_answer import ResponseAnswer
from service.api.answers.response_events import ResponseEvents
from service.api.answers.response_items import OutputItems
from service.api.answers.token_logprobs import (
    TokenNames,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
    scored_prompt,
)
from service.api.call_head import CallHead
from service.api.calls.output_form import CompiledForm
from service.api.calls.prepared_call import CallPrompts, PreparedCall
from service.api.calls.response_call import ResponseCall
from service.api.calls.response_tools import CalledAs, ResponseTools
from service.api.calls.validation import check_call
from service.api.calls.wire_parsing import parse
from service.api.serving_state import GenerationDefaults, ServedModel
from service.config import ApiConfig
from service.core.events import FinalEvent, Outcome, TokenEvent
from service.core.request import FinishReason, Request
from service.core.sampling_params import SamplingParams
from service.core.stats import RequestStats
from service.core.token_logprobs import TokenLogprobs
from service.engine.async_engine import AsyncEngine
from service.engine.streams import RequestStream
from service.protocol.completions import CompletionRequest
from service.protocol.responses import ResponsesRequest
from service.text.chat_output import ReasoningDelta
from service.text.stop_strings import StopRules
from service.text.tokenizer import Tokenizer
from service.text.tool_calls import CallDelta, TextDelta
from tests.complexity.growth import Work, WorstInput
from tests.complexity.text_inputs import MOST_TOKENS
from tests.text import tiny_tokenizers

_CONFIG = ApiConfig(served_model_names=("m",))
_TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
_NAMES = TokenNames(_TOKENIZER)
_LOGPROBS = TokenLogprobs(-1.0, tuple((token_id, -2.0) for token_id in range(20)), rank=1)


class _Engine:
    """Hands out streams; events are put into the last one by hand."""

    stream = RequestStream()

    def submit(self, request: Request) -> RequestStream:
        self.stream = RequestStream()
        return self.stream

    def stop_choice(self, request_id: str, choice_index: int) -> None:
        """Nobody asks."""


def _events(n: int, text: str = "a") -> list[TokenEvent | FinalEvent]:
    (token_id,) = _TOKENIZER.encode(text, add_special_tokens=False)
    ended = FinalEvent(Outcome.FINISHED, RequestStats(2, 1, 1, 1, 5, 0.0, 0.0, 0.0, 0.0, 0))
    return [*[TokenEvent(0, token_id, None)] * (n - 1), TokenEvent(0, token_id, FinishReason.LENGTH), ended]


def _collected(n: int) -> Work:
    """Each token comes by itself, and the whole answer is wanted."""

    def work() -> None:
        async def collect() -> None:
            engine = _Engine()
            generation = _generation(engine, n)
            collecting = asyncio.ensure_future(generation.collect())
            for event in _events(n):
                engine.stream.events.append(event)
                engine.stream.wake()
                await asyncio.sleep(0)
            await collecting

        asyncio.run(collect())

    return work


def _generation(engine: _Engine, max_tokens: int, n: int = 1) -> Generation:
    request = Request("r", (5, 6), SamplingParams(max_tokens=max_tokens, n=n), 0.0)
    return Generation(cast(AsyncEngine, engine), _TOKENIZER, [request], StopRules(("never",)))


def _unread(n: int) -> Work:
    """All tokens come at once, to a client that has not read for long."""

    def work() -> None:
        engine = _Engine()
        generation = _generation(engine, n)
        engine.stream.events += _events(n)
        generation.take_pieces()

    return work


def _deltas(n: int) -> list[TextDelta | ReasoningDelta | CallDelta]:
    word = "x" * 100
    return [
        *[ReasoningDelta(word)] * n,
        *[TextDelta(word)] * n,
        CallDelta(0, "f", ""),
        *[CallDelta(0, None, word)] * n,
    ]


def _framed(n: int) -> Work:
    piece = Piece(0, 0, "", [], True, FinishReason.STOP, deltas=_deltas(n), has_calls=True)
    answer = ChatAnswer(_prepared(), _generation(_Engine(), 9))
    return lambda: answer.frame(piece)


def _prepared(**fields: Any) -> PreparedCall:
    wire = parse(CompletionRequest, {"model": "m", "prompt": "x", **fields})
    checked = check_call(wire, _CONFIG, GenerationDefaults(), logprobs=wire.logprobs)
    model = ServedModel(cast(AsyncEngine, _Engine()), _TOKENIZER, None, "m", 0, 100, 1000, frozenset())
    prompts = CallPrompts([[5, 6]], "prompt")
    return PreparedCall(CallHead("id", 0, 0.0, ""), model, checked, prompts, CompiledForm())


def _assembled(n: int) -> Work:
    choice = CollectedChoice(0, 0, "", [], [], FinishReason.STOP, deltas=_deltas(n))
    return lambda: assemble_message(choice, lambda: "id").model_dump_json()


def _scored(n: int) -> list[ScoredToken]:
    return [ScoredToken(40, _LOGPROBS, index) for index in range(n)]


def _completion_logprobs(n: int) -> Work:
    tokens, names = _scored(n), TokenNames(Tokenizer(tiny_tokenizers.byte_level()))
    return lambda: orjson.dumps(completion_logprobs(names, tokens))


def _chat_logprobs(n: int) -> Work:
    tokens = _scored(n)
    return lambda: orjson.dumps(chat_logprobs(_NAMES, tokens))


def _prompt_logprobs(n: int) -> Work:
    ids, scores = [40] * n, [_LOGPROBS] * (n - 1)

    def work() -> None:
        prompt_logprobs(_NAMES, ids, scores)
        list(scored_prompt(_TOKENIZER, ids, scores, 20))

    return work


def _whole_completion(n: int) -> Work:
    choice = CollectedChoice(0, 0, "a" * n, [40] * n, [5, 6], FinishReason.LENGTH, scored=_scored(n))
    answer = CompletionAnswer(_prepared(logprobs=20), _generation(_Engine(), 9))
    return lambda: answer.whole([choice])


def _response_items(n: int) -> Work:
    """In many pieces: a message, reasoning and calls again and again."""
    deltas = [each for delta in _deltas(1) for each in (delta, CallDelta(0, "g", '{"input":"x"}'))] * (n // 8)
    called_as = {name: CalledAs(kind, name, None, "") for name, kind in (("f", "function"), ("g", "custom"))}

    def work() -> None:
        items = OutputItems("resp_1", cast(Any, called_as), lambda: "call", ResponseEvents())
        for delta in deltas:
            items.push([delta])
        items.finish(FinishReason.STOP)

    return work


def _response(n: int) -> Work:
    """A stream with logprobs, all but the last of which are held back."""
    piece = Piece(0, 0, "a" * n, [40] * n, True, FinishReason.LENGTH, scored=_scored(n))
    held = [token._replace(is_content=None) for token in piece.scored[:-1]]

    def work() -> None:
        call = ResponseCall(
            _prepared(logprobs=20), ResponsesRequest(model="m"), ResponseTools(), conversation=cast(Any, None)
        )
        answer = ResponseAnswer(call, _generation(_Engine(), 9), is_stored=False, keep=lambda json: None)
        answer.begin()
        answer.frame(piece._replace(scored=[*held, piece.scored[-1]]))
        answer.end()

    return work


ANSWER_INPUTS = [
    WorstInput(
        "response: many items, in many pieces",
        ("api/answers/response_items.py", "api/answers/response_events.py"),
        _response_items,
        1_000,
        MOST_TOKENS,
        "stream",
    ),
    WorstInput("response: logprobs", ("api/answers/response_answer.py",), _response, 200, 190_000, "pool"),
    WorstInput(
        "answer: collected a token at a time",
        ("api/answers/generation.py", "api/answers/choice_text.py"),
        _collected,
        500,
        MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "stream: all tokens of a client that did not read",
        ("api/answers/generation.py", "api/answers/choice_text.py"),
        _unread,
        1_000,
        4_096,
        "loop",
    ),
    WorstInput(
        "stream: many deltas in one frame",
        ("api/answers/chat_answer.py", "api/answers/chunk_frames.py"),
        _framed,
        2_000,
        4_096,
        "loop",
    ),
    WorstInput("answer: many deltas", ("api/answers/chat_answer.py",), _assembled, 2_000, MOST_TOKENS, "pool"),
    WorstInput(
        "logprobs of a completion",
        ("api/answers/token_logprobs.py", "text/token_bytes.py"),
        _completion_logprobs,
        500,
        190_000,
        "pool",
    ),
    WorstInput("logprobs of a chat", ("api/answers/token_logprobs.py",), _chat_logprobs, 200, 190_000, "pool"),
    WorstInput("logprobs of a prompt", ("api/answers/token_logprobs.py",), _prompt_logprobs, 200, 190_000, "pool"),
    WorstInput(
        "answer: a completion with logprobs",
        ("api/answers/completion_answer.py", "api/answers/chunk_frames.py", "api/answers/generation.py"),
        _whole_completion,
        300,
        190_000,
        "pool",
    ),
]
