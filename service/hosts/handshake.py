"""Two hosts prove to each other that they know the same secret, before either reads anything else.

Each proves it with an HMAC-SHA256 over a nonce that the other has just drawn, so a recorded handshake cannot be
replayed. Later traffic, hidden states included, is neither signed nor encrypted: the network between the hosts must be
the operator's own.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from enum import IntEnum
from typing import NamedTuple

ADMITTED_WITHIN_S = 5.0

_GREETING = b"headrace hosts 1"
_NONCE_BYTES = _PROOF_BYTES = 32
_CLAIM = struct.Struct("!BH")  # purpose, node rank


class Purpose(IntEnum):
    """What a connection is for. CONTROL: frames (host_line.py). STORE: bytes of the store in which ranks meet."""

    CONTROL = 1
    STORE = 2


class Claim(NamedTuple):
    purpose: Purpose
    node: int


class NotAdmitted(Exception):
    """The other side is gone or silent; or it is a Stranger."""


class Stranger(NotAdmitted):
    """The other side does not know the secret or does not run this version of Headrace; trying again will not help."""


def admit(connection: socket.socket, secret: str) -> Claim:
    """The head's side. Raises NotAdmitted. Takes at most ADMITTED_WITHIN_S and reads 67 bytes."""
    deadline_s = time.monotonic() + ADMITTED_WITHIN_S
    nonce = secrets.token_bytes(_NONCE_BYTES)
    try:
        connection.settimeout(ADMITTED_WITHIN_S)
        connection.sendall(_GREETING + nonce)
        said = _read(connection, _NONCE_BYTES + _CLAIM.size + _PROOF_BYTES, deadline_s)
        their_nonce, claim = said[:_NONCE_BYTES], said[_NONCE_BYTES:-_PROOF_BYTES]
        if not hmac.compare_digest(said[-_PROOF_BYTES:], _proof(secret, b"member", nonce, their_nonce, claim)):
            raise Stranger("its node-secret is wrong or missing")
        purpose, node = _CLAIM.unpack(claim)
        connection.sendall(_proof(secret, b"head", nonce, their_nonce, claim))
        return Claim(Purpose(purpose), node)
    except (OSError, ValueError) as fault:
        raise NotAdmitted(str(fault)) from fault


def introduce(connection: socket.socket, secret: str, claim: Claim) -> None:
    """The other host's side. Raises NotAdmitted. Takes at most ADMITTED_WITHIN_S."""
    deadline_s = time.monotonic() + ADMITTED_WITHIN_S
    nonce = secrets.token_bytes(_NONCE_BYTES)
    try:
        connection.settimeout(ADMITTED_WITHIN_S)
        greeting = _read(connection, len(_GREETING) + _NONCE_BYTES, deadline_s)
        if not greeting.startswith(_GREETING):
            raise Stranger("the server there is not a Headrace head of this version")
        their_nonce, said = greeting[len(_GREETING) :], _CLAIM.pack(claim.purpose, claim.node)
        connection.sendall(nonce + said + _proof(secret, b"member", their_nonce, nonce, said))
        try:
            proof = _read(connection, _PROOF_BYTES, deadline_s)
        except ConnectionError:
            proof = b""
        if not hmac.compare_digest(proof, _proof(secret, b"head", their_nonce, nonce, said)):
            raise Stranger("node-secret differs from the head's")
    except OSError as fault:
        raise NotAdmitted(str(fault)) from fault


def _proof(secret: str, side: bytes, head_nonce: bytes, member_nonce: bytes, claim: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + head_nonce + member_nonce + claim, "sha256")


def _read(connection: socket.socket, num_bytes: int, deadline_s: float) -> bytes:
    """Raises TimeoutError at the deadline, even if bytes still trickle in; ConnectionError if the other side has
    closed."""
    parts = b""
    while len(parts) < num_bytes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left_s)
        part = connection.recv(num_bytes - len(parts))
        if not part:
            raise ConnectionError("the other side closed the connection")
        parts += part
    return parts
