from __future__ import annotations

import asyncio
from typing import cast

import pytest

from service.api.answers.generation import CollectedChoice, Generation
from service.core.events import FinalEvent, Outcome, PromptEvent, StreamEvent, TokenEvent
from service.core.request import FinishReason, Request
from service.core.sampling_params import SamplingParams
from service.core.stats import RequestStats
from service.core.token_logprobs import TokenLogprobs
from service.engine.async_engine import AsyncEngine
from service.engine.streams import RequestStream
from service.errors import Overloaded, RequestError, ServerError, Unavailable
from service.text.chat_output import ChatOutput
from service.text.stop_strings import StopRules
from service.text.tokenizer import Tokenizer
from tests.text import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
A, B, C = (TOKENIZER.encode(letter, add_special_tokens=False)[0] for letter in "abc")
STATS = RequestStats(2, 1, 1, 1, 5, 0.0, 0.0, 0.0, 0.0, 0)
FINISHED = FinalEvent(Outcome.FINISHED, STATS)


class HandFedEngine:
    """Events are put into its streams by hand; it refuses after `room` requests."""

    def __init__(self, room: int = 10) -> None:
        self.streams: dict[str, RequestStream] = {}
        self.aborted: list[str] = []
        self.stopped: list[tuple[str, int]] = []
        self._room = room

    def submit(self, request: Request) -> RequestStream:
        if len(self.streams) == self._room:
            raise Overloaded("full")
        self.streams[request.request_id] = RequestStream()
        return self.streams[request.request_id]

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stop_choice(self, request_id: str, choice_index: int) -> None:
        self.stopped.append((request_id, choice_index))

    def put(self, request_id: str, *events: StreamEvent) -> None:
        self.streams[request_id].events += events
        self.streams[request_id].wake()


def requests(count: int, n: int = 1) -> list[Request]:
    return [Request(f"r{index}", (5, 6), SamplingParams(max_tokens=5, n=n), 0.0) for index in range(count)]


def generation_of(engine: HandFedEngine, wanted: list[Request], *stops: str) -> Generation:
    return Generation(cast(AsyncEngine, engine), TOKENIZER, wanted, StopRules(stops))


def last(token_id: int, choice: int = 0, reason: FinishReason = FinishReason.LENGTH) -> TokenEvent:
    return TokenEvent(choice, token_id, reason)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_collects_all_choices_in_order() -> None:
    async def scene() -> list[CollectedChoice]:
        engine = HandFedEngine()
        generation = generation_of(engine, requests(2, n=2))
        collecting = asyncio.create_task(generation.collect())
        await settle()
        engine.put("r1", last(C, 1), TokenEvent(0, A, None))
        await settle()
        engine.put("r0", last(A, 0), last(B, 1), FINISHED)
        engine.put("r1", last(B, 0), FINISHED)
        choices = await collecting
        assert generation.usage.model_dump(exclude_unset=True) == {
            "prompt_tokens": 4,
            "completion_tokens": 5,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        assert not generation.close()
        assert engine.aborted == []
        return choices

    assert [(choice.index, choice.text) for choice in asyncio.run(scene())] == [(0, "a"), (1, "b"), (2, "ab"), (3, "c")]


def test_a_refusal_aborts_what_was_submitted() -> None:
    async def scene() -> None:
        engine = HandFedEngine(room=2)
        with pytest.raises(Overloaded):
            generation_of(engine, requests(3))
        assert engine.aborted == ["r0", "r1"]

    asyncio.run(scene())


def test_a_defect_in_making_the_output_leaves_no_request_behind() -> None:
    def broken() -> ChatOutput:
        raise RuntimeError

    engine = HandFedEngine()
    with pytest.raises(RuntimeError):
        Generation(cast(AsyncEngine, engine), TOKENIZER, requests(2), StopRules(()), broken)
    assert set(engine.streams) == set(engine.aborted)


@pytest.mark.parametrize(
    ("end", "raised"),
    [
        (FinalEvent(Outcome.FAILED, STATS, ServerError("broken")), ServerError),
        (FinalEvent(Outcome.ABORTED, STATS), Unavailable),
    ],
)
def test_one_failure_fails_the_call_after_the_text_before_it(end: FinalEvent, raised: type[RequestError]) -> None:
    async def scene() -> None:
        engine = HandFedEngine()
        generation = generation_of(engine, requests(2))
        engine.put("r0", TokenEvent(0, A, None), end)
        assert [piece.text for piece in generation.take_pieces()] == ["a"]
        assert isinstance(generation.error, raised)
        assert not generation.is_done
        with pytest.raises(raised):
            await generation.collect()
        assert generation.close()
        assert engine.aborted == ["r1"]
        await settle()

    asyncio.run(scene())


def test_a_text_side_stop_is_told_to_the_engine_once() -> None:
    async def scene() -> None:
        engine = HandFedEngine()
        generation = generation_of(engine, requests(1, n=2), "b")
        collecting = asyncio.create_task(generation.collect())
        await settle()
        engine.put("r0", TokenEvent(1, A, None), TokenEvent(1, B, None))
        await settle()
        assert engine.stopped == [("r0", 1)]
        engine.put("r0", TokenEvent(1, C, None), last(A, 0), FINISHED)
        choices = await collecting
        assert [(choice.text, choice.finish_reason) for choice in choices] == [("a", "length"), ("a", "stop")]
        assert engine.stopped == [("r0", 1)]

    asyncio.run(scene())


def test_nothing_follows_the_last_piece_of_a_choice() -> None:
    """Tokens that were under way when the engine was told to stop say nothing, plain or as events."""

    async def scene() -> None:
        engine = HandFedEngine()
        generation = generation_of(engine, requests(1), "b")
        engine.put("r0", A, B)
        (piece,) = generation.take_pieces()
        assert (piece.text, piece.finish_reason) == ("a", FinishReason.STOP)
        engine.put("r0", C)
        assert generation.take_pieces() == []
        engine.put("r0", last(C), FINISHED)
        assert generation.take_pieces() == []
        assert generation.is_done
        assert generation.usage.completion_tokens == 2

    asyncio.run(scene())


def test_a_choice_that_the_engine_ended_is_not_stopped_again() -> None:
    async def scene() -> None:
        engine = HandFedEngine()
        generation = generation_of(engine, requests(1), "b")
        engine.put("r0", TokenEvent(0, B, None), last(C), FINISHED)
        assert [choice.finish_reason for choice in await generation.collect()] == ["stop"]
        assert engine.stopped == []

    asyncio.run(scene())


def test_close_is_idempotent_and_ends_the_reading() -> None:
    async def scene() -> None:
        engine = HandFedEngine()
        generation = generation_of(engine, requests(2))
        collecting = asyncio.create_task(generation.collect())
        await settle()
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        assert generation.close()
        assert not generation.close()
        assert sorted(engine.aborted) == ["r0", "r1"]
        await settle()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scene())


def test_usage_before_the_end_does_not_pretend_to_know_what_was_cached() -> None:
    async def scene() -> None:
        generation = generation_of(HandFedEngine(), requests(1))
        assert generation.usage.prompt_tokens_details is None
        generation.close()

    asyncio.run(scene())


def test_counts_the_logprobs_that_an_answer_has_to_write() -> None:
    def logprobs(top: int) -> TokenLogprobs:
        return TokenLogprobs(-1.0, tuple((token_id, -1.0) for token_id in range(top)))

    async def scene() -> int:
        engine = HandFedEngine()
        sampling = SamplingParams(max_tokens=5, num_logprobs=2, num_prompt_logprobs=3)
        generation = generation_of(engine, [Request("r0", (5, 6), sampling, 0.0)])
        tokens = [TokenEvent(0, A, None, logprobs(2)), last(B)._replace(logprobs=logprobs(2))]
        engine.put("r0", PromptEvent((logprobs(3),)), *tokens, FINISHED)
        await generation.collect()
        generation.close()
        return generation.num_logprobs

    of_the_tokens, of_the_prompt = 2 * (1 + 2), 1 * (1 + 3)
    assert asyncio.run(scene()) == of_the_tokens + of_the_prompt
