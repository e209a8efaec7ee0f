"""Adapters reach the ranks of all hosts, piece by piece, beside plans."""

from __future__ import annotations

import gc
import os
import queue
import socket
from collections.abc import Iterator

import pytest

from service.core.iteration import IterationPlan
from service.distributed.adapter_lines import AdapterLines, AdapterTaker
from service.distributed.control_ring import MessageKind
from service.distributed.plan_codec import PlanEncoder
from service.distributed.rank_status import Fact, RankStatuses
from service.errors import ServerError
from service.hosts.adapter_pieces import PIECE_BYTES, AdapterAssembly, AdaptersOfHosts
from tests.distributed.held_adapters import Held
from tests.distributed.test_rank_processes import comes_true
from tests.hosts.hosts import Head


class HostScene:
    """A host with one rank, as a thread, and no network between it and the head. sent: pieces."""

    def __init__(self, rank: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.held, self.line = Held(), ours
        AdapterTaker(rank, theirs, self.held, RankStatuses(RankStatuses.make_memory(4), 4)).start()
        self.lines = AdapterLines([ours], [rank])
        self.adapter_answers = queue.SimpleQueue[str]()
        self.assembly = AdapterAssembly(self.lines, lambda words: self.adapter_answers.put(words.decode()))
        self.sent: list[int] = []

    def send_piece(self, payload: bytes) -> str:
        assert self.adapter_answers.empty(), "the one before is answered"
        self.sent.append(len(payload))
        self.assembly.take(payload)
        return ""


@pytest.fixture
def scene() -> Iterator[list[HostScene]]:
    """The head and two other hosts."""
    hosts = [HostScene(rank) for rank in (1, 2, 3)]
    yield hosts
    for host in hosts:
        host.line.close()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 17])
def test_every_rank_has_the_whole_of_it_and_no_frame_is_larger_than_a_piece(scene: list[HostScene], size: int):
    head, *others = scene
    gc.collect()  # what other tests have left is not counted
    before, data = len(os.listdir("/proc/self/fd")), os.urandom(size)
    AdaptersOfHosts(head.lines, others).share(7, lambda file: file.write(data))
    assert [host.held.files for host in scene] == [{7: data}] * 3
    assert all(max(host.sent) <= PIECE_BYTES + 16 for host in others)
    assert comes_true(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_rank_of_any_host_that_cannot_take_one_is_named_and_the_next_is_taken(scene: list[HostScene]):
    head, *others = scene
    adapters = AdaptersOfHosts(head.lines, others)
    with pytest.raises(ServerError, match="could not load the adapter: rank 1: MemoryError: no room"):
        adapters.share(1, lambda file: file.write(b"bad"))
    head.held.take = lambda adapter_id, file: None
    with pytest.raises(ServerError, match="rank 2: MemoryError: no room"):
        adapters.share(2, lambda file: file.write(b"bad"))
    adapters.share(3, lambda file: file.write(b"good"))
    assert [3 in host.held.files for host in others] == [True, True]


def test_a_host_without_room_for_a_piece_gets_no_more_of_it(scene: list[HostScene]):
    head, full, other = scene
    data, take = os.urandom(3 * PIECE_BYTES), full.assembly.take

    def second_fails(payload: bytes) -> None:
        if len(full.sent) == 2:
            full.assembly._file.close()
            full.assembly._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
        take(payload)

    full.assembly.take = second_fails
    adapters = AdaptersOfHosts(head.lines, [full, other])
    with pytest.raises(ServerError, match="No space left"):
        adapters.share(1, lambda file: file.write(data))
    assert (len(full.sent), len(other.sent)) == (2, 3)
    adapters.share(2, lambda file: file.write(data))
    assert full.held.files == {2: data} and other.held.files == {1: data, 2: data}


def test_over_the_line_of_plans_and_a_host_that_ends_is_no_wait_for_ever():
    with Head() as head:
        other = head.start_other()
        writer, encoder = head.meet(), PlanEncoder()
        adapters = head.hosts.adapters(AdapterLines([]))
        for number in range(1, 4):
            adapters.share(number, lambda file: file.write(os.urandom(5 * PIECE_BYTES)))
            writer.write(MessageKind.PLAN, encoder.encode(IterationPlan(())))
        assert comes_true(lambda: head.statuses.get(1, Fact.ADAPTERS) == 3)
        assert comes_true(lambda: head.statuses.get(1, Fact.PLANS_DONE) == 3)
        with pytest.raises(ServerError, match=r"host 1 \(127.0.0.1\): rank 1: MemoryError: no room"):
            adapters.share(4, lambda file: file.write(b"bad"))
        other.kill()
        with pytest.raises(ServerError, match=r"host 1 \(127.0.0.1\)"):
            adapters.share(5, lambda file: file.write(os.urandom(5 * PIECE_BYTES)))
