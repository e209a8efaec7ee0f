"""The head's side and another host's, joined over TCP, with ranks that load nothing."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from service.core.iteration import IterationPlan
from service.distributed.control_ring import MessageKind
from service.distributed.plan_codec import PlanEncoder
from service.distributed.rank_status import Fact
from service.errors import ConfigError, ModelLoadError
from service.hosts import head as head_module
from service.hosts.handshake import Claim, Purpose, introduce
from service.hosts.head import HeadHosts
from service.hosts.host_line import HostLine, Word
from service.hosts.member import Member
from tests.distributed.test_rank_processes import comes_true, is_running, stop
from tests.hosts.hosts import PARALLEL, SECRET, TASK, Head, node


@contextmanager
def introduced(head: Head, rank: int) -> Iterator[HostLine]:
    """The line of a host with this number."""
    connection = socket.create_connection(("127.0.0.1", head.port))
    introduce(connection, SECRET, Claim(Purpose.CONTROL, rank))
    line = HostLine(connection, "the head")
    yield line
    line.close()


def test_plans_reach_the_ranks_of_another_host_their_facts_come_back_and_all_end_in_order():
    """In the order in which they were written, behind one that is larger than a socket's buffers."""
    with Head() as head:
        other = head.start_other()
        writer = head.meet()
        assert comes_true(lambda: head.statuses.get(1, Fact.KV_BYTES) == 1001)
        writer.write(MessageKind.DRAWN, bytes(3 << 20))  # which is of no use to that rank
        encoder = PlanEncoder()
        for _ in range(5):
            writer.write(MessageKind.PLAN, encoder.encode(IterationPlan(())))
        assert comes_true(lambda: head.statuses.get(1, Fact.PLANS_DONE) == 5)
        assert head.statuses.get(1, Fact.MESSAGES) == 6
        other.send_signal(signal.SIGTERM)
        assert comes_true(lambda: head.leaving == ["host 1 (127.0.0.1): SIGTERM"])
        assert other.poll() is None  # it computes until the head says so
        head.hosts.close()
        assert other.wait(10) == 0
        assert head.losses == []


@pytest.mark.parametrize(
    ("behaviour", "how", "words"),
    [
        ("crashes", None, "host 1 (127.0.0.1): rank 1 has ended with status 3"),
        ("works", signal.SIGKILL, "host 1 (127.0.0.1) has ended"),
        pytest.param(
            "works", signal.SIGSTOP, "nothing received from host 1 (127.0.0.1) for 5 s", marks=pytest.mark.load
        ),
    ],
)
def test_a_lost_host_is_a_loss_in_its_own_words(behaviour: str, how: signal.Signals | None, words: str):
    with Head() as head:
        other = head.start_other(behaviour)
        if how is None:
            head.hosts.meet(TASK, lambda: 1)
        else:
            head.meet()
            heard = head.statuses.get(1, Fact.HEARTBEAT)
            assert comes_true(
                lambda: head.statuses.get(1, Fact.HEARTBEAT) > heard + 5
            )  # with the patience of a ready one
            stop(other.pid) if how is signal.SIGSTOP else other.send_signal(how)
        assert comes_true(lambda: head.losses == [words])
        if how is None:
            assert other.wait(10) == 1


def test_a_lost_head_ends_the_others_in_its_words():
    with Head() as head:
        other = head.start_other()
        head.meet()
        head.loss.declare("rank 0 is out of sorts")
        assert other.wait(10) == 1
        assert other.stderr is not None and "the head: rank 0 is out of sorts" in other.stderr.read()


def test_who_differs_is_refused_by_name_and_another_may_come_in_its_place():
    with Head() as head:
        differing = head.start_other("works", "differs")

        def replace_it() -> None:
            assert differing.wait(20) == 1
            head.start_other()

        replacing = threading.Thread(target=replace_it)
        replacing.start()
        head.meet()
        replacing.join()
        assert differing.stderr is not None
        assert "the head rejected this host: block-size is 32, but 16 on the head" in differing.stderr.read()


def test_who_does_not_come_is_named_in_time():
    with Head() as head, pytest.raises(ModelLoadError, match=r"^host 1 of 2 did not connect within 0 s$"):
        head.hosts.gather({}, within_s=0.2)


def test_who_does_not_know_the_secret_is_told_so_and_not_spoken_to():
    with Head() as head:
        stranger = head.start_other(secret="another of sixteen letters")
        assert stranger.wait(10) == 1
        assert stranger.stderr is not None and "node-secret differs from the head's" in stranger.stderr.read()


@pytest.mark.parametrize(
    ("rank", "why"),
    [
        (1, "node-rank 1 is already taken by host 1 (127.0.0.1)"),
        (2, "node-rank 2 must be at least 1 and less than nnodes (2)"),
    ],
)
def test_a_host_with_a_taken_or_invalid_number_is_told_why(rank: int, why: str):
    with Head() as head, introduced(head, 1):
        assert comes_true(lambda: 1 in head.hosts._members)
        with introduced(head, rank) as line:
            assert line.receive() == (Word.REFUSED, why.encode())


def test_strangers_hold_no_place_for_ever_and_no_more_than_a_few(monkeypatch: pytest.MonkeyPatch):
    """They are closed in time, however they trickle, and one that knows the secret comes in then."""
    monkeypatch.setattr("service.hosts.handshake.ADMITTED_WITHIN_S", 0.5)
    with Head() as head:
        strangers = [socket.create_connection(("127.0.0.1", head.port)) for _ in range(3 * head_module.MOST_STRANGERS)]
        started_s = time.monotonic()
        for stranger in strangers:
            stranger.settimeout(5)
            with suppress(ConnectionError):
                while stranger.recv(4096):
                    stranger.send(b"x")
        assert time.monotonic() - started_s < 5
        for stranger in strangers:
            stranger.close()
        head.start_other()
        head.meet()


def test_a_port_that_cannot_be_listened_to_is_refused_by_name():
    with Head() as head, pytest.raises(ConfigError, match=f"master-addr 127.0.0.1, master-port {head.port}"):
        HeadHosts(node(0, head.port), PARALLEL).listen(head.statuses, head.loss, print)


def test_ranks_end_with_the_process_that_stands_for_rank_0():
    with Head() as head:
        other = head.start_other()
        head.meet()
        children = f"/proc/{other.pid}/task/{other.pid}/children"
        (rank,) = map(int, Path(children).read_text().split())
        other.kill()
        other.wait()
        assert comes_true(lambda: not is_running(rank))


def test_a_control_frame_without_a_kind_is_a_loss_and_ends_no_thread_in_silence():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        head = HostLine(socket.create_connection(listening.getsockname()), "another host")
        line = HostLine(listening.accept()[0], "the head")
    member = Member(node(1, 1), TASK)
    head.send(Word.CONTROL)
    member._hear(line)
    assert member._loss.reason == "the head sent an invalid message: an empty control message"
    for each in (head, line, member._processes):
        each.close()
