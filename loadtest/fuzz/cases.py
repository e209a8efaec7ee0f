"""The cases of the fuzz, each from the seed and its number: valid requests, known attacks on framing, random damage."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    "{}", "{}?a=b&c", "http://h{}", "http://h:80{}", "//{}", "{}/../x", "{}%2f%00", "/%2e%2e{}", "{}#x", "*", "{}?" + "x" * 3000,
]  # fmt: skip
_METHODS = ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "M-SEARCH", "CONNECT"]
_HEADERS = [
    "Accept: */*", "X-A:", "X-B:\t tab \t", "x-c: \x80\xff", "Expect: 100-continue", "Accept-Encoding: gzip, br",
    "Authorization: Bearer x", "Cookie: " + "c" * 2000, "X-Request-ID: " + "i" * 300, "Origin: http://x", "TE: trailers",
    "Range: bytes=0-1", "If-None-Match: *", "Connection: keep-alive", "Transfer-Encoding-X: chunked", "X-Forwarded-For: ::1",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
]  # fmt: skip
_HIDDEN = b"GET /version HTTP/1.1\r\nHost: h\r\nX-Hidden: 1\r\n\r\n"
"""A request within another's body: answered only by a server that lost count of the bytes."""

_MAX_DRAWN_TOKENS = 2


class Case(NamedTuple):
    """data: all that the client sends, in `pieces` of these sizes. stalls: then it neither sends nor leaves."""

    number: int
    kind: str
    data: bytes
    pieces: tuple[int, ...]
    stalls: bool


def make_case(seed: int, number: int, stall_every: int = 0) -> Case:
    """stall_every: one case in so many stalls; 0: none."""
    chance = random.Random(f"{seed} {number}")
    requests = [_request(chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
    draw = chance.random()
    if draw < 0.25:
        kind, data = "valid", b"".join(requests)
    elif draw < 0.6:
        attack = chance.choice(_ATTACKS)
        before, after = requests[:-1], _HIDDEN if chance.random() < 0.5 else b""
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
    """Up to the last header's line end."""
    version = "HTTP/1.0" if may_be_old and chance.random() < 0.05 else "HTTP/1.1"
    lines = [*headers, "Host: h", *chance.sample(_HEADERS, chance.choice([0, 0, 1, 3]))]
    if chance.random() < 0.05:
        lines.append("Connection: close")
    chance.shuffle(lines)
    lines = [line.upper() if line.isascii() and chance.random() < 0.1 else line for line in lines]
    return "\r\n".join([f"{method} {target} {version}", *lines, ""]).encode("latin-1")


def _body(chance: random.Random) -> tuple[str, bytes]:
    """A route, and what is sent there: JSON of the right shape, of any shape, and what is none."""
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
        [b"", b"{", b"[" * 2000, b"null", b"\xff\xfe", b'{"a":' * 500, b'{"model":"\\ud800"}', _HIDDEN]
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
            data[:at] + _HIDDEN + data[at:],
        ]
    )


def _post(headers: bytes, body: bytes, line: bytes = b"POST /tokenize HTTP/1.1") -> bytes:
    return line + b"\r\nHost: h\r\nContent-Type: application/json\r\n" + headers + b"\r\n" + body


def _get(headers: bytes, line: bytes = b"GET /health HTTP/1.1") -> bytes:
    return line + b"\r\n" + headers + b"\r\n"


def _length_beside_chunks(chance: random.Random) -> bytes:
    headers = [b"Content-Length: %d\r\n" % chance.choice([0, 4, 5, 60]), b"Transfer-Encoding: chunked\r\n"]
    chance.shuffle(headers)
    return _post(b"".join(headers), b"0\r\n\r\n")


def _two_lengths(chance: random.Random) -> bytes:
    return _post(
        chance.choice(
            [
                b"Content-Length: 0\r\nContent-Length: 60\r\n", b"Content-Length: 2\r\nContent-Length: 2\r\n",
                b"Content-Length: 2, 2\r\n", b"Content-Length: 2\r\ncontent-length: 3\r\n",
            ]
        ),
        b"{}",
    )  # fmt: skip


def _odd_length(chance: random.Random) -> bytes:
    odd = [
        b"+2",
        b"-2",
        b"0x2",
        b"2 ",
        b" 2",
        b"2;",
        b"",
        b"2\t",
        b"02",
        b"2.0",
        b"1e1",
        b"9" * 30,
        b"18446744073709551618",
        b"\xb2",
    ]
    return _post(b"Content-Length:" + chance.choice(odd) + b"\r\n", b"{}")


def _huge_length(chance: random.Random) -> bytes:
    return _post(b"Content-Length: %d\r\n" % chance.choice([8 << 20, 9 << 20, 1 << 40, (1 << 63) - 1]), b"{}")


def _odd_encoding(chance: random.Random) -> bytes:
    odd = [
        b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: \x0bchunked", b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        b"Transfer-Encoding\r\n : chunked", b"X: X\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked;q=1",
        b" Transfer-Encoding: chunked", b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: \x00chunked", b"transfer_encoding: chunked",
    ]  # fmt: skip
    beside = chance.choice([b"", b"Content-Length: 5\r\n"])
    return _post(beside + chance.choice(odd) + b"\r\n", b"0\r\n\r\n")


def _odd_chunks(chance: random.Random) -> bytes:
    odd = [
        b"2\n{}\r\n0\r\n\r\n", b"2\r\n{}\n0\r\n\r\n", b"2\r\n{}0\r\n\r\n", b"+2\r\n{}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n",
        b"2 \r\n{}\r\n0\r\n\r\n", b" 2\r\n{}\r\n0\r\n\r\n", b"-1\r\n\r\n", b"f" * 17 + b"\r\n{}\r\n0\r\n\r\n", b"2\r\n{}\r\n0\n\n",
        b"10000000000000002\r\n{}\r\n0\r\n\r\n", b"2;\n{}\r\n0\r\n\r\n", b"2;a\x00b\r\n{}\r\n0\r\n\r\n", b"\r\n0\r\n\r\n", b"2\r{}\r\n0\r\n\r\n",
        b"2;" + b"e" * 70_000 + b"\r\n{}\r\n0\r\n\r\n", b"0\r\nContent-Length: 9\r\n\r\n", b"0\r\n" + b"t: t\r\n" * 200 + b"\r\n",
        b"0\r\nbad trailer\r\n\r\n", b"900000\r\n{}", b"7fffffff\r\n{}", b"2\r\n{}\r\n0\r\n a\r\n\r\n",
    ]  # fmt: skip
    return _post(b"Transfer-Encoding: chunked\r\n", chance.choice(odd))


def _odd_line_ends(chance: random.Random) -> bytes:
    whole = _get(b"Host: h\r\nX-A: b\r\n")
    swap = chance.choice(
        [(b"\r\n", b"\n"), (b"\r\n", b"\r"), (b"\r\n", b"\r\r\n"), (b"\r\n\r\n", b"\n\n"), (b"h\r\n", b"h\n")]
    )
    swap = chance.choice(
        [
            swap,
            (b"b\r\n", b"b\r"),
            (b"1.1\r\n", b"1.1\n"),
            (b": b", b": \rb"),
            (b": b", b": \nb"),
            (b"\r\n\r\n", b"\r\n\r"),
        ]
    )
    return whole.replace(*swap)


def _odd_header(chance: random.Random) -> bytes:
    odd = [
        b"Host : h", b"Host: h\r\n folded", b"Host: h\r\n\tfolded", b" Host: h", b"Host: h\r\nX: a\0b", b"Host: h\r\n: empty",
        b"Host: h\r\nno colon", b"Host: h\r\nX\xffY: 1", b"Host: h\r\nX(Y): 1", b"Host: h\r\nX: " + b"y" * 70_000,
        b"Host: h\r\n" + b"a: b\r\n" * 150 + b"c: d", b"Host: h\r\nX: \x7f", b"Host: h\r\nX: \x01", b"Host: h\r\n\0: 1",
    ]  # fmt: skip
    return _get(chance.choice(odd) + b"\r\n")


def _odd_host(chance: random.Random) -> bytes:
    odd = [
        b"",
        b"Host: a\r\nHost: b\r\n",
        b"Host: h\r\nhost: h\r\n",
        b"Host:\r\n",
        b"Host: a b\r\n",
        b"Host: h:99999\r\n",
        b"Host: @/\r\n",
    ]
    return _get(
        chance.choice(odd),
        chance.choice([b"GET /health HTTP/1.1", b"GET /health HTTP/1.0", b"GET http://x/health HTTP/1.1"]),
    )


def _odd_request_line(chance: random.Random) -> bytes:
    odd = [
        b"GET /health", b"GET /health ", b"GET  /health HTTP/1.1", b"GET /health  HTTP/1.1", b"GET\t/health HTTP/1.1", b"GET /health HTTP/1.1 ",
        b"GET /health HTTP/0.9", b"get /health HTTP/1.1", b"GETX /health HTTP/1.1", b"GET /health HTTP/1.2", b"GET /health HTTP/2.0", b"GET /health HTTP/11", b"GET /health http/1.1", b" GET /health HTTP/1.1",
        b"GET /health HTTP/1.1\0", b"GET health HTTP/1.1", b"GET /a b HTTP/1.1", b"GET /\xff HTTP/1.1", b"GET /\0 HTTP/1.1", b"G\xffT / HTTP/1.1",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1", b"GET / ICE/1.0", b"GET http:// HTTP/1.1", b"GET h: HTTP/1.1", b"GET ? HTTP/1.1",
        b"CONNECT h:80 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET /%zz HTTP/1.1", b"GET /%00 HTTP/1.1", b"GET /..;/x HTTP/1.1", b"SOURCE /x HTTP/1.1",
        b"\r\n\r\nGET /health HTTP/1.1", b"\nGET /health HTTP/1.1", b"\rGET /health HTTP/1.1",
    ]  # fmt: skip
    return _get(b"Host: h\r\n", chance.choice(odd))


def _other_protocol(chance: random.Random) -> bytes:
    return chance.choice(
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(160)),
            b"GET /\r\n", b"GET /\r\n\r\n", b"SSH-2.0-x\r\n", b"EHLO x\r\n", b"\0" * 100, b"\r\n" * 100, b"HTTP/1.1 200 OK\r\n\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n" + _get(b"Host: h\r\n"), b"*1\r\n$4\r\nPING\r\n", chance.randbytes(200),
        ]
    )  # fmt: skip


def _body_of_get(chance: random.Random) -> bytes:
    body = chance.choice([b"x", _HIDDEN])
    framing = chance.choice([b"Content-Length: %d\r\n" % len(body), b""])
    return _get(b"Host: h\r\n" + framing) + body


_ATTACKS: Sequence[Callable[[random.Random], bytes]] = (
    _length_beside_chunks, _two_lengths, _odd_length, _huge_length, _odd_encoding, _odd_chunks, _odd_line_ends, _odd_header,
    _odd_host, _odd_request_line, _other_protocol, _body_of_get,
)  # fmt: skip
