from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from service.chat_client import batch_watch
from service.chat_client.batch_watch import watch_batch
from service.chat_client.server import BatchState, Server, ServerFault

RUNS, OVER = (BatchState("b", status, 2, 0, 0, [], []) for status in ("in_progress", "completed"))


class Telling(Server):
    """pushed: what its stream brings; None: it has none. asked: what it answers who asks, one after the other."""

    def __init__(self, pushed: Sequence[BatchState | bytes] | None, asked: Sequence[BatchState] = ()) -> None:
        super().__init__("http://nowhere")
        self.pushed = pushed
        self.asked = list(asked)

    def batch_events(self, batch_id: str, *, lines: bool) -> Generator[BatchState | bytes, None, None]:
        if self.pushed is None:
            raise ServerFault("no such route")
        yield from (told for told in self.pushed if lines or isinstance(told, BatchState))

    def batch(self, batch_id: str) -> BatchState:
        if not self.asked:
            raise ServerFault("does not answer")
        return self.asked.pop(0)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_watch, "_LOOK_EVERY_S", 0.0)


def test_who_pushes_is_not_asked() -> None:
    assert list(watch_batch(Telling([RUNS, b"1", b"2", OVER]), "b", lines=True)) == [RUNS, b"1", b"2", OVER]
    assert list(watch_batch(Telling([RUNS, b"1", OVER]), "b", lines=False)) == [RUNS, OVER]


@pytest.mark.parametrize("pushed", [None, [], [RUNS]])
def test_who_pushes_nothing_or_breaks_off_is_asked(pushed: list[BatchState | bytes] | None) -> None:
    told = list(watch_batch(Telling(pushed, [RUNS, RUNS, OVER]), "b", lines=True))
    assert told == [*(pushed or ()), RUNS, RUNS, OVER]


def test_who_does_not_answer_either_is_a_fault() -> None:
    watched = watch_batch(Telling([RUNS], []), "b", lines=True)
    assert next(watched) == RUNS
    with pytest.raises(ServerFault, match="does not answer"):
        next(watched)
