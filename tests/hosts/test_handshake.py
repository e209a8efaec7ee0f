from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import cast

import pytest

from service.hosts import handshake
from service.hosts.handshake import Claim, NotAdmitted, Purpose, Stranger, admit, introduce

CLAIM = Claim(Purpose.CONTROL, 3)


def both(one: Callable[[socket.socket], object], other: Callable[[socket.socket], object]) -> list[object]:
    """What each returned, or raised, at its end of a connection, which it closes."""
    ends = socket.socketpair()
    results: list[object] = [None, None]

    def run(place: int, side: Callable[[socket.socket], object]) -> None:
        with ends[place]:
            try:
                results[place] = side(ends[place])
            except (NotAdmitted, OSError) as fault:
                results[place] = fault

    threads = [threading.Thread(target=run, args=each) for each in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_who_knows_the_secret_is_admitted_as_what_it_claims():
    assert both(lambda end: admit(end, "secret"), lambda end: introduce(end, "secret", CLAIM)) == [CLAIM, None]


def test_who_does_not_is_a_stranger_to_both():
    results = both(lambda end: admit(end, "secret"), lambda end: introduce(end, "other", CLAIM))
    assert [type(result) for result in results] == [Stranger, Stranger]


def test_what_was_overheard_is_of_no_use():
    heard: list[bytes] = []

    class Overheard:
        def __init__(self, end: socket.socket) -> None:
            self._end = end
            self.settimeout, self.recv = end.settimeout, end.recv

        def sendall(self, data: bytes) -> None:
            heard.append(data)
            self._end.sendall(data)

    both(lambda end: admit(end, "secret"), lambda end: introduce(cast(socket.socket, Overheard(end)), "secret", CLAIM))

    def replay(end: socket.socket) -> None:
        end.recv(1000)
        end.sendall(heard[0])
        end.recv(1000)

    result, _ = both(lambda end: admit(end, "secret"), replay)
    assert isinstance(result, Stranger)


def test_who_proves_one_claim_has_not_proved_another():
    def lie(end: socket.socket) -> None:
        class Changed:
            settimeout, recv = end.settimeout, end.recv

            def sendall(self, data: bytes) -> None:
                end.sendall(data[:32] + handshake._CLAIM.pack(Purpose.STORE, 1) + data[35:])

        introduce(cast(socket.socket, Changed()), "secret", CLAIM)

    result, _ = both(lambda end: admit(end, "secret"), lie)
    assert isinstance(result, Stranger)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(1000)])
def test_whatever_else_is_said_is_not_admitted_and_not_waited_for(said: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handshake, "ADMITTED_WITHIN_S", 0.2)

    def say(end: socket.socket) -> None:
        end.sendall(said)
        end.settimeout(5)
        while end.recv(1000):
            pass

    result, _ = both(lambda end: admit(end, "secret"), say)
    assert isinstance(result, NotAdmitted)


def test_another_service_at_the_heads_port_is_told_from_the_head():
    result, _ = both(
        lambda end: introduce(end, "secret", CLAIM), lambda end: end.sendall(b"HTTP/1.1 400 Bad Request" * 3)
    )
    assert isinstance(result, Stranger)
    assert "not a Headrace head" in str(result)
