"""Frames in the middle of a plain stream, of which only the text changes: what nearly all frames are, in few steps.

A plain stream has one choice, of which nothing but its text is told. Its first frame, its last, and all of any other
stream are made of pieces (generation.py, chunk_frames.py): that is the plain twin.
"""

from __future__ import annotations

import time

import orjson

from service.api.answers.generation import Generation
from service.core.host_times import HostTimes


class PlainFrames:
    """On the event loop. before, after: what stands around the text, which is JSON, in each frame."""

    def __init__(self, generation: Generation, before: bytes, after: bytes, times: HostTimes) -> None:
        self._generation = generation
        self._before = before
        self._after = after
        self._times = times

    def take(self) -> bytes | None:
        """The frame of all tokens that have come, empty if they say nothing yet. None, and nothing is taken, if they
        are to be made pieces of."""
        began_s = time.perf_counter()
        text = self._generation.take_plain_text()
        if not text:
            return None if text is None else b""
        told_s = time.perf_counter()
        frame = b"%b%b%b" % (self._before, orjson.dumps(text), self._after)
        times = self._times
        times.detokenize += told_s - began_s
        times.sse += time.perf_counter() - told_s
        return frame
