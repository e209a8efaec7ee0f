"""Batches that run in the background of the chat until the user asks for their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Thread

from service.chat_client.batch_input import BatchItem
from service.chat_client.server import ServerFault
from service.chat_client.server_batch import ServerBatch

MAX_CALLS = 16
"""At a time, of all batches together."""


@dataclass(frozen=True, slots=True)
class Batch:
    """name: the server's id of the batch, or, with a server without batches, a number from 1."""

    name: str
    items: Sequence[BatchItem]
    answers: Sequence[Future[str]]

    @property
    def is_done(self) -> bool:
        return all(answer.done() for answer in self.answers)


class Batches:
    """begin(items): has the server run them as a batch; raises ServerFault if it does not support batches. Then
    answer(item) makes one call, in a thread of the pool. Everything else belongs to the user's thread."""

    def __init__(self, begin: Callable[[Sequence[BatchItem]], ServerBatch], answer: Callable[[BatchItem], str]) -> None:
        self._begin = begin
        self._answer = answer
        self._on_the_server = list[ServerBatch]()
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="batch")
        self._num_started = 0
        self._waiting: list[Batch] = []
        self._told: set[str] = set()

    def start(self, items: Sequence[BatchItem]) -> Batch:
        try:
            batch = self._begun(items)
        except ServerFault:
            self._num_started += 1
            batch = Batch(str(self._num_started), items, [self._pool.submit(self._answer, item) for item in items])
        self._waiting.append(batch)
        return batch

    def newly_done(self) -> list[str]:
        """Names of the batches that have ended since the last call and whose answers were not taken yet."""
        done = [batch.name for batch in self._waiting if batch.is_done and batch.name not in self._told]
        self._told.update(done)
        return done

    def take_done(self) -> list[Batch]:
        """The batches that have ended; each is returned once."""
        done = [batch for batch in self._waiting if batch.is_done]
        self._waiting = [batch for batch in self._waiting if batch not in done]
        return done

    @property
    def num_running(self) -> int:
        return sum(not batch.is_done for batch in self._waiting)

    def close(self) -> None:
        """Drops calls that have not begun, and waits for those that have. The server's batches are cancelled."""
        for begun in self._on_the_server:
            if not begun.is_over:
                begun.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begun(self, items: Sequence[BatchItem]) -> Batch:
        begun = self._begin(items)
        batch = Batch(begun.batch_id, items, [Future[str]() for _ in items])
        self._on_the_server.append(begun)
        Thread(target=begun.bring, args=(batch.answers,), name=batch.name, daemon=True).start()
        return batch


def answer_or_fault(answer: Future[str]) -> str:
    """The result of a call that is done, as text for the user."""
    try:
        return answer.result()
    except ServerFault as fault:
        return f"(failed: {fault})"
