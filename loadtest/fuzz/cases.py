"""The fuzz's cases, each from the seed and its number: valid requests, known framing attacks, random damage."""

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from loadtest.fuzz.attacks import ATTACKS, HIDDEN
from loadtest.soak.hostile_calls import JUNK, MODEL, draw_call

_SPECIAL = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"0",
    b"\xff",
    b"%00",
    b"\x0b",
    b"\x85",
]
_GETS = ["/health", "/version", "/v1/models", "/ready", "/none", "/v1/requests/x/trace", "/v1/models/x"]
_TARGETS = [
    "{}", "{}?a=b&c", "http://h{}", "http://h:80{}", "//{}", "{}/../x", "{}%2f%00", "/%2e%2e{}", "{}#x", "*",
    "{}?" + "x" * 3000,
]  # fmt: skip
_METHODS = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "M-SEARCH", "CONNECT"]
_HEADERS = [
    "Accept: */*", "X-A:", "X-B:\t tab \t", "x-c: \x80\xff", "Expect: 100-continue", "Accept-Encoding: gzip, br",
    "Authorization: Bearer x", "Cookie: " + "c" * 2000, "X-Request-ID: " + "i" * 300, "Origin: http://x",
    "TE: trailers",
    "Range: bytes=0-1", "If-None-Match: *", "Connection: keep-alive", "Transfer-Encoding-X: chunked",
    "X-Forwarded-For: ::1",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
]  # fmt: skip
_MAX_DRAWN_TOKENS = 2


class Case(NamedTuple):
    """data: everything that the client sends. pieces: sizes of its writes. stalls: afterwards it neither sends nor
    disconnects."""

    number: int
    kind: str
    data: bytes
    pieces: tuple[int, ...]
    stalls: bool


def make_case(seed: int, number: int, stall_every: int = 0) -> Case:
    """stall_every: every so many-th case stalls; 0: none."""
    chance = random.Random(f"{seed} {number}")
    requests = [_request(chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
    draw = chance.random()
    if draw < 0.25:
        kind, data = "valid", b"".join(requests)
    elif draw < 0.6:
        attack = chance.choice(ATTACKS)
        before, after = requests[:-1], HIDDEN if chance.random() < 0.5 else b""
        kind, data = attack.__name__.strip("_"), b"".join(before) + attack(chance) + after
    else:
        kind, data = "damaged", b"".join(requests)
        for _ in range(chance.choice([1, 1, 2, 5])):
            data = _damage(data, chance)
    stalls = stall_every > 0 and chance.randrange(stall_every) == 0
    return Case(number, kind, data, _pieces(len(data), chance), stalls)


def _pieces(size: int, chance: random.Random) -> tuple[int, ...]:
    if size < 2 or chance.random() < 0.6:
        return (size,)
    if chance.random() < 0.1:
        head = min(size, 60)
        return (1,) * head + ((size - head,) if size > head else ())
    cuts = sorted(chance.sample(range(1, size), min(size - 1, chance.choice([1, 2, 5]))))
    return tuple(end - start for start, end in zip([0, *cuts], [*cuts, size], strict=True))


def _request(chance: random.Random) -> bytes:
    if chance.random() < 0.35:
        method = chance.choice([*["GET"] * 6, *_METHODS])
        target = chance.choice(_GETS) if chance.random() < 0.7 else chance.choice(_TARGETS).format(chance.choice(_GETS))
        return _head(chance, method, target, []) + b"\r\n"
    path, body = _body(chance)
    headers = ["Content-Type: application/json"]
    if chance.random() < 0.3:
        content = _chunked(body, chance)
        return (
            _head(chance, "POST", path, [*headers, "Transfer-Encoding: chunked"], may_be_old=False) + b"\r\n" + content
        )
    return _head(chance, "POST", path, [*headers, f"Content-Length: {len(body)}"]) + b"\r\n" + body


def _head(chance: random.Random, method: str, target: str, headers: Sequence[str], *, may_be_old: bool = True) -> bytes:
    """The head, up to and including the line end of the last header."""
    version = "HTTP/1.0" if may_be_old and chance.random() < 0.05 else "HTTP/1.1"
    lines = [*headers, "Host: localhost", *chance.sample(_HEADERS, chance.choice([0, 0, 1, 3]))]
    if chance.random() < 0.05:
        lines.append("Connection: close")
    chance.shuffle(lines)
    lines = [line.upper() if line.isascii() and chance.random() < 0.1 else line for line in lines]
    return "\r\n".join([f"{method} {target} {version}", *lines, ""]).encode("latin-1")


def _body(chance: random.Random) -> tuple[str, bytes]:
    """A route and a body: JSON of the right schema, JSON of any kind, or no JSON at all."""
    draw = chance.random()
    if draw < 0.25:
        call: dict[str, Any] = {
            "model": MODEL,
            "prompt": chance.choice(["", "hi", "x" * 500]),
            "add_special_tokens": True,
        }
        return "/tokenize", _json(call)
    if draw < 0.45:
        return "/detokenize", _json({"model": MODEL, "tokens": chance.choice([[], [1, 2, 3], [10**9], *JUNK])})
    if draw < 0.55:
        path, body = draw_call(chance)
        small = {name: value for name, value in body.items() if name not in {"n", "best_of", "beam_width"}}
        return path, _json(small | {"max_tokens": _MAX_DRAWN_TOKENS})
    if draw < 0.62:
        text = {"model": MODEL, "prompt": "hi", "max_tokens": 1, "stream": chance.random() < 0.5}
        return "/v1/completions", _json(text)
    path = chance.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
    if draw < 0.85:
        names = ["model", "prompt", "messages", "tokens", "max_tokens", "stream", "stop"]
        return path, _json({name: chance.choice(JUNK) for name in chance.sample(names, 3)})
    return path, chance.choice(
        [b"", b"{", b"[" * 2000, b"null", b"\xff\xfe", b'{"a":' * 500, b'{"model":"\\ud800"}', HIDDEN]
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _chunked(body: bytes, chance: random.Random) -> bytes:
    pieces, start = [], 0
    while start < len(body):
        size = chance.randrange(1, len(body) - start + 1)
        extension = chance.choice([b"", b"", b"", b";a", b";a=b", b';q="x y"'])
        size_text = (b"%x" if chance.random() < 0.5 else b"%04X") % size
        pieces.append(size_text + extension + b"\r\n" + body[start : start + size] + b"\r\n")
        start += size
    return b"".join(pieces) + chance.choice([b"0\r\n\r\n", b"0\r\n\r\n", b"000\r\n\r\n", b"0\r\nX-Trailer: a\r\n\r\n"])


def _damage(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1) if chance.random() < 0.4 else chance.randrange(min(len(data), 300) + 1)
    upto = min(len(data), at + chance.choice([1, 1, 2, 10, 100]))
    special = chance.choice(_SPECIAL)
    return chance.choice(
        [
            data[:at] + special + data[at:],
            data[:at] + special + data[upto:],
            data[:at] + data[upto:],
            data[:upto] + data[at:],
            data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            data[:at] + special * chance.choice([2, 50]) + data[at:],
            data[:at],
            data[:at] + HIDDEN + data[at:],
        ]
    )
