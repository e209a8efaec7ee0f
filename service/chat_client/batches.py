"""Batches that run behind the chat, until the user asks for their answers."""

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
    """name: the server's id, or where it takes no batches a number, from 1."""

    name: str
    items: Sequence[BatchItem]
    answers: Sequence[Future[str]]

    @property
    def is_done(self) -> bool:
        return all(answer.done() for answer in self.answers)


class Batches:
    """begin(items): has the server run them as a batch; raises ServerFault where it takes none. Then answer(item) makes
    one call, in a thread of the pool. Everything else belongs to the user's thread."""

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
        """Names of the batches that have come to an end since the last call, and whose answers still wait."""
        done = [batch.name for batch in self._waiting if batch.is_done and batch.name not in self._told]
        self._told.update(done)
        return done

    def take_done(self) -> list[Batch]:
        """The batches that have come to an end; their answers are given out once."""
        done = [batch for batch in self._waiting if batch.is_done]
        self._waiting = [batch for batch in self._waiting if batch not in done]
        return done

    @property
    def num_running(self) -> int:
        return sum(not batch.is_done for batch in self._waiting)

    def close(self) -> None:
        """Calls that have not begun are dropped; those that have are waited for. The server's batches are cancelled."""
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
    """What a call of a batch that is done came to, as text for the user."""
    try:
        return answer.result()
    except ServerFault as fault:
        return f"(failed: {fault})"
