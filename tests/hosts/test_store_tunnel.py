from __future__ import annotations

import socket
import threading

from service.hosts.store_tunnel import StoreTunnel


def test_what_is_said_at_its_port_is_said_to_the_store_and_back_until_one_side_ends():
    with socket.create_server(("127.0.0.1", 0)) as store:

        def answer() -> None:
            for _ in range(2):
                connection, _ = store.accept()
                with connection:
                    while part := connection.recv(1 << 16):
                        connection.sendall(part.upper())

        threading.Thread(target=answer, daemon=True).start()
        port = StoreTunnel(lambda: socket.create_connection(store.getsockname())).open()
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as rank:
                rank.sendall(b"x" * 100_000)
                heard = b""
                while len(heard) < 100_000:
                    heard += rank.recv(1 << 16)
                assert heard == b"X" * 100_000


def test_where_the_store_cannot_be_reached_the_rank_is_told_at_once():
    def refuse() -> socket.socket:
        raise ConnectionRefusedError

    with socket.create_connection(("127.0.0.1", StoreTunnel(refuse).open()), timeout=5) as rank:
        assert rank.recv(1) == b""
