"""History of one request for its trace: waits and their reasons, prompt chunks. Bounded; engine thread only."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

MAX_WAITS_KEPT = 16
MAX_CHUNKS_KEPT = 32

WaitReason = Literal["iteration", "sequences", "tokens", "memory", "adapter", "transfer", "deferral"]
"""Why the scheduler last left the request waiting. `sequences`, `tokens`: the iteration's limits were reached.
`memory`: not enough KV blocks. `adapter`: no slot or KV blocks for its adapter, which is not on the device. `transfer`:
its blocks are still being copied. `deferral`: a training went first, within the deferral bound. `iteration`: nothing
was short; it arrived while an iteration ran."""


class Wait(NamedTuple):
    since_s: float
    until_s: float
    reason: WaitReason


class Chunk(NamedTuple):
    """Two or more tokens computed by one iteration: part of the prompt, or of what a preemption had dropped."""

    at_s: float
    num_tokens: int


class RequestJournal:
    """`waits` and `chunks` keep the last entries; `num_chunks` counts all. Seconds on the engine's clock. num_drafted,
    num_accepted: draft tokens computed for it, and how many of them were right."""

    __slots__ = ("_num_drawing", "_waiting_since_s", "chunks", "num_accepted", "num_chunks", "num_drafted", "waits")

    def __init__(self, arrival_s: float) -> None:
        self._waiting_since_s = arrival_s
        self._num_drawing = 0
        self.num_chunks = self.num_drafted = self.num_accepted = 0
        self.waits: deque[Wait] = deque(maxlen=MAX_WAITS_KEPT)
        self.chunks: deque[Chunk] = deque(maxlen=MAX_CHUNKS_KEPT)

    def note_start(self, now_s: float, refused_s: float, reason: WaitReason) -> None:
        """The request starts. refused_s, reason: when and why the scheduler last left any request waiting."""
        waited_for = reason if refused_s >= self._waiting_since_s else "iteration"
        self.waits.append(Wait(self._waiting_since_s, now_s, waited_for))

    def note_pause(self, now_s: float) -> None:
        """The request is preempted and waits again."""
        self._waiting_since_s = now_s

    def note_chunk(self, now_s: float, num_tokens: int, *, draws: bool) -> None:
        """An iteration computes `num_tokens` tokens of it. draws: and then draws the next one."""
        self.num_chunks += 1
        self._num_drawing += draws
        self.chunks.append(Chunk(now_s, num_tokens))

    def num_iterations(self, num_tokens_of_longest: int) -> int:
        """How many iterations computed some of it. num_tokens_of_longest: output tokens of its longest choice.

        Other iterations than chunks need not be recorded: each draws one token, and one more per right draft.
        """
        return self.num_chunks + max(0, num_tokens_of_longest - self._num_drawing - self.num_accepted)
