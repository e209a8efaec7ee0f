from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from service.distributed.adapter_lines import AdapterLines, AdapterTaker
from service.distributed.rank_status import Fact, RankStatuses
from service.errors import ServerError
from tests.distributed.held_adapters import Held
from tests.distributed.test_rank_processes import comes_true


class Scene:
    """Ranks 1 and 2 as threads."""

    def __init__(self) -> None:
        memory = RankStatuses.make_memory(3)
        self.statuses = RankStatuses(memory, 3)
        os.close(memory)
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
        self.ours, self.theirs = zip(*pairs, strict=True)
        self.lines = AdapterLines(self.ours)
        self.held = [Held(), Held()]
        self.takers = [
            AdapterTaker(rank, line, held, self.statuses)
            for rank, (line, held) in enumerate(zip(self.theirs, self.held, strict=True), 1)
        ]

    def share(self, adapter_id: int, data: bytes) -> None:
        self.lines.share(adapter_id, lambda file: file.write(data))

    def close(self) -> None:
        for line in self.ours:
            line.close()

    def counts(self) -> list[int]:
        return [self.statuses.get(rank, Fact.ADAPTERS) for rank in (1, 2)]


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    for taker in scene.takers:
        taker.start()
    yield scene
    scene.close()


def test_an_adapter_is_there_once_every_rank_has_it_and_no_descriptor_is_left(scene: Scene) -> None:
    before = len(os.listdir("/proc/self/fd"))
    large = os.urandom(3 << 20)
    for adapter_id in range(1, 9):
        scene.share(adapter_id, large + bytes([adapter_id]))
        assert all(held.files[adapter_id] == large + bytes([adapter_id]) for held in scene.held)
        assert scene.counts() == [adapter_id] * 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_several_threads_may_share_at_once(scene: Scene) -> None:
    threads = [threading.Thread(target=scene.share, args=(number, str(number).encode())) for number in range(1, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(held.files == {number: str(number).encode() for number in range(1, 21)} for held in scene.held)


def test_a_rank_that_cannot_take_one_is_told_by_its_words_and_takes_the_next(scene: Scene) -> None:
    with pytest.raises(ServerError, match="could not load the adapter: rank 1: MemoryError: no room"):
        scene.share(1, b"bad")
    scene.share(2, b"good")
    assert [list(held.files) for held in scene.held] == [[2], [2]]


def test_what_is_dropped_is_told_once_and_forgotten_by_each_whether_it_has_it_or_not(scene: Scene) -> None:
    scene.share(1, b"one")
    scene.lines.drop(1)
    scene.lines.drop(7)
    assert scene.lines.take_dropped() == (1, 7)
    assert scene.lines.take_dropped() == ()
    for taker in scene.takers:
        taker.drop((1, 7))
    assert scene.counts() == [0, 0]


def test_a_rank_that_ends_meanwhile_makes_an_error_and_nobody_waits() -> None:
    scene = Scene()
    scene.takers[0].start()
    failed: list[str] = []

    def share() -> None:
        with pytest.raises(ServerError) as fault:
            scene.share(1, b"one")
        failed.append(str(fault.value))

    thread = threading.Thread(target=share)
    thread.start()
    assert comes_true(lambda: 1 in scene.held[0].files)
    scene.theirs[1].close()
    thread.join(30)
    assert "rank 2" in failed[0]
    with pytest.raises(ServerError, match="rank 2"):
        scene.share(2, b"two")
    assert scene.held[0].files.keys() == {1, 2}, "what was sent to others was answered, so the next one is not mixed up"
    scene.close()
