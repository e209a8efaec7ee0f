from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.answers.chat_answer import ChatAnswer
from service.api.answers.completion_answer import CompletionAnswer
from service.api.answers.frame_stream import FrameStream
from service.api.answers.generation import Generation
from service.api.calls.validation import CheckedCall
from service.core.events import StreamEvent, TokenEvent
from service.core.host_times import HostTimes
from service.core.request import FinishReason
from service.engine.async_engine import AsyncEngine
from service.text.stop_strings import StopRules
from tests.api.answers.test_chunk_frames import CALL, prepared
from tests.api.answers.test_generation import FINISHED, TOKENIZER, A, B, HandFedEngine, requests

LETTERS = TOKENIZER.encode('aä€𝄞 "\n\\', add_special_tokens=False)


class Streamed:
    """A call's stream, written by pieces, or plain where that can be. num_plain: frames that were."""

    def __init__(
        self, call: CheckedCall, *, is_chat: bool, plainly: bool, n: int = 1, stops: Sequence[str] = ()
    ) -> None:
        self.engine = HandFedEngine()
        self.generation = Generation(cast(AsyncEngine, self.engine), TOKENIZER, requests(1, n), StopRules(tuple(stops)))
        form = (ChatAnswer if is_chat else CompletionAnswer)(prepared(call), self.generation)
        self.is_ever_plain = form.around_text is not None
        self.num_plain, self.written = 0, b""
        recorder = SimpleNamespace(times=HostTimes(), record_abort=lambda reason: None)
        context: Any = SimpleNamespace(recorder=recorder)
        self.times = context.recorder.times
        self._frames = FrameStream(context, self.generation, form)
        take_plain = self._frames._take_plain

        def counted() -> bytes | None:
            frame = take_plain() if plainly else None
            self.num_plain += frame is not None
            return frame

        self._frames._take_plain = counted

    def close(self) -> None:
        self._frames.close("client_disconnected")

    def put(self, *events: StreamEvent) -> None:
        self.engine.put("r0", *events)
        self.written += self._frames.take()


@given(
    batches=st.lists(st.lists(st.sampled_from(LETTERS), max_size=6), max_size=8),
    is_chat=st.booleans(),
    include_usage=st.booleans(),
)
def test_a_plain_stream_is_what_its_pieces_say(batches: list[list[int]], is_chat: bool, include_usage: bool) -> None:
    written = []
    for plainly in (True, False):
        stream = Streamed(replace(CALL, include_usage=include_usage), is_chat=is_chat, plainly=plainly)
        for token_ids in ([A], *batches):
            stream.put(*token_ids)
        stream.put(B, TokenEvent(0, A, FinishReason.LENGTH), FINISHED)
        assert stream.num_plain == (len(batches) if plainly else 0), "all but the first and the last"
        assert stream.generation.is_done
        written.append((stream.written, stream.generation.usage_fields()))
    assert written[0] == written[1]


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize("wanted", ["return_token_ids", "continuous_usage", "logprobs"])
def test_frames_that_say_more_than_text_are_never_plain(wanted: str, is_chat: bool) -> None:
    assert Streamed(CALL, is_chat=is_chat, plainly=True).is_ever_plain
    assert not Streamed(replace(CALL, **{wanted: 1}), is_chat=is_chat, plainly=True).is_ever_plain


@pytest.mark.parametrize(("n", "stops"), [(2, ()), (1, ("stop",))])
def test_streams_of_several_choices_or_with_stop_strings_are_made_of_pieces(n: int, stops: Sequence[str]) -> None:
    stream = Streamed(CALL, is_chat=False, plainly=True, n=n, stops=stops)
    for _ in range(3):
        stream.put(A, B)
    assert stream.num_plain == 0
    assert stream.written.count(b"ab") == 3


def test_the_time_of_plain_frames_counts() -> None:
    stream = Streamed(CALL, is_chat=False, plainly=True)
    stream.put(A)
    assert stream.times.detokenize == 0, "of pieces, it counts when the stream is closed"
    stream.put(B)
    assert stream.times.detokenize > 0
    assert stream.times.sse > 0


def test_what_a_generation_holds_goes_with_its_stream_and_not_with_a_later_collection() -> None:
    """An adapter whose name is gone, above all."""
    stream = Streamed(CALL, is_chat=True, plainly=True)
    stream.put(A, B, TokenEvent(0, A, FinishReason.LENGTH), FINISHED)
    del stream._frames._take_plain, stream.generation  # the test's own
    frames = weakref.ref(stream._frames)
    gc.disable()
    try:
        stream.close()
        del stream
        assert frames() is None
    finally:
        gc.enable()


def test_one_that_was_left_has_no_end() -> None:
    stream = Streamed(CALL, is_chat=True, plainly=True)
    stream.put(A)
    stream.close()
    stream.put(FINISHED)
    assert b"DONE" not in stream.written


def test_a_form_may_begin_before_anything_is_generated() -> None:
    """Once, and also where the stream ends at once."""

    class Begins(CompletionAnswer):
        def begin(self) -> bytes:
            return b"begin "

    engine = HandFedEngine()
    generation = Generation(cast(AsyncEngine, engine), TOKENIZER, requests(1), StopRules())
    context: Any = SimpleNamespace(recorder=SimpleNamespace(times=HostTimes()))
    frames = FrameStream(context, generation, Begins(prepared(CALL), generation))
    assert frames.take() == b"begin "
    engine.put("r0", TokenEvent(0, A, FinishReason.LENGTH), FINISHED)
    rest = frames.take()
    assert b"[DONE]" in rest
    assert b"begin" not in rest
