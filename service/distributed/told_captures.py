"""CUDA graphs that are captured after start with several ranks: all ranks have each graph from the same plan on.

A step with a graph is padded to the graph's size, and so are its all-reduces. So rank 0 decides when to capture each
graph, between two plans, and the other ranks capture it between the same two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from service.distributed.control_ring import MessageKind, MessageWriter, ReaderStalled
from service.distributed.integers import IntegerReader, IntegerWriter
from service.distributed.rank_loss import RankLoss
from service.runner.graph_sizes import GraphSize


class Capture(NamedTuple):
    """The arguments of `Replays.capture` (service/runner/replays.py)."""

    sizes: Sequence[GraphSize]
    adapters: bool
    asked: bool

    def to_bytes(self) -> bytes:
        to = IntegerWriter()
        to.many([number for size in self.sizes for number in size])
        to.one(self.adapters)
        to.one(self.asked)
        return to.message()

    @staticmethod
    def from_bytes(message: bytes) -> Capture:
        """Raises ValueError if the message ends too early."""
        reader = IntegerReader(message)
        numbers = reader.many()
        sizes = [GraphSize(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
        return Capture(sizes, bool(reader.one()), bool(reader.one()))


class ToldCaptures:
    """Rank 0's side: inside `with captures(sizes, ...)` rank 0 captures, and the other ranks are told to. Engine thread
    only.

    If rank 0's capture fails, the others' may have succeeded, so the ranks are declared lost.
    """

    def __init__(self, writer: MessageWriter, loss: RankLoss) -> None:
        self._writer = writer
        self._loss = loss

    @contextmanager
    def __call__(self, sizes: Sequence[GraphSize], *, adapters: bool, asked: bool) -> Iterator[None]:
        self._loss.check()
        try:
            self._writer.write(MessageKind.CAPTURE, Capture(sizes, adapters, asked).to_bytes())
            yield
        except ReaderStalled as fault:
            self._loss.declare(str(fault))
            raise
        except Exception as fault:
            self._loss.declare(f"rank 0 could not capture a CUDA graph: {type(fault).__name__}: {fault}")
            raise
