from __future__ import annotations

import socket
import threading

import pytest

from service.hosts import host_line
from service.hosts.host_line import HostLine, LineLost, Said, Word


def lines() -> tuple[HostLine, HostLine]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        return HostLine(one, "the head"), HostLine(listening.accept()[0], "host 1")


def test_frames_come_whole_and_in_order_and_what_was_said_before_the_end_is_heard():
    head, other = lines()
    said = [Said(Word.CONTROL, bytes(size)) for size in (0, 1, 5 << 20, 7)]

    def say() -> None:
        for each in said:
            other.send(*each)
        other.finish()

    thread = threading.Thread(target=say)
    thread.start()
    assert [head.receive() for _ in said] == said
    thread.join()
    with pytest.raises(LineLost, match=r"^the head has ended$"):
        head.receive()
    head.close(), other.close()


def test_silence_and_a_reader_that_takes_nothing_are_losses_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_line, "SILENT_AFTER_S", 0.2)
    head, other = lines()
    head.expect_signs()
    with pytest.raises(LineLost, match="nothing received from the head for"):
        head.receive()
    with pytest.raises(LineLost, match="cannot send to the head: "):
        head.send(Word.CONTROL, bytes(50 << 20))
    head.close(), other.close()


@pytest.mark.parametrize("frame", [(1 << 20, Word.HELLO), (3, 77)])
def test_a_frame_that_is_too_large_or_unknown_is_not_read(frame: tuple[int, int]):
    head, other = lines()
    head._connection.sendall(host_line._FRAME.pack(*frame))
    with pytest.raises(LineLost, match="host 1 sent an invalid frame"):
        other.receive(most_bytes=1 << 16)
    head.close(), other.close()


def test_who_waits_is_told_that_this_side_has_closed():
    head, other = lines()
    closing = threading.Timer(0.1, head.close)
    closing.start()
    with pytest.raises(LineLost):
        head.receive()
    closing.join()
    other.close()
