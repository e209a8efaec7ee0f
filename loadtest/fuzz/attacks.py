"""Known attacks on the framing of HTTP/1.1, in families from which one is drawn. They smuggle a request where two
readers of a connection disagree about where a request ends.
"""

import random
from collections.abc import Callable, Sequence

HIDDEN = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Hidden: 1\r\n\r\n"
"""A request inside another's body: answered only if the server loses count of the bytes."""


def _post(headers: bytes, body: bytes, line: bytes = b"POST /tokenize HTTP/1.1") -> bytes:
    return line + b"\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers + b"\r\n" + body


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
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding:\tchunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        b"Transfer-Encoding\r\n : chunked", b"X: X\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked;q=1",
        b" Transfer-Encoding: chunked", b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: \x00chunked",
        b"transfer_encoding: chunked",
    ]  # fmt: skip
    beside = chance.choice([b"", b"Content-Length: 5\r\n"])
    return _post(beside + chance.choice(odd) + b"\r\n", b"0\r\n\r\n")


def _odd_chunks(chance: random.Random) -> bytes:
    odd = [
        b"2\n{}\r\n0\r\n\r\n", b"2\r\n{}\n0\r\n\r\n", b"2\r\n{}0\r\n\r\n", b"+2\r\n{}\r\n0\r\n\r\n",
        b"0x2\r\n{}\r\n0\r\n\r\n",
        b"2 \r\n{}\r\n0\r\n\r\n", b" 2\r\n{}\r\n0\r\n\r\n", b"-1\r\n\r\n", b"f" * 17 + b"\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}\r\n0\n\n",
        b"10000000000000002\r\n{}\r\n0\r\n\r\n", b"2;\n{}\r\n0\r\n\r\n", b"2;a\x00b\r\n{}\r\n0\r\n\r\n",
        b"\r\n0\r\n\r\n", b"2\r{}\r\n0\r\n\r\n",
        b"2;" + b"e" * 70_000 + b"\r\n{}\r\n0\r\n\r\n", b"0\r\nContent-Length: 9\r\n\r\n",
        b"0\r\n" + b"t: t\r\n" * 200 + b"\r\n",
        b"0\r\nbad trailer\r\n\r\n", b"900000\r\n{}", b"7fffffff\r\n{}", b"2\r\n{}\r\n0\r\n a\r\n\r\n",
    ]  # fmt: skip
    return _post(b"Transfer-Encoding: chunked\r\n", chance.choice(odd))


def _odd_line_ends(chance: random.Random) -> bytes:
    whole = _get(b"Host: localhost\r\nX-A: b\r\n")
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
        b"Host : localhost", b"Host: localhost\r\n folded", b"Host: localhost\r\n\tfolded", b" Host: localhost",
        b"Host: localhost\r\nX: a\0b",
        b"Host: localhost\r\n: empty",
        b"Host: localhost\r\nno colon", b"Host: localhost\r\nX\xffY: 1", b"Host: localhost\r\nX(Y): 1",
        b"Host: localhost\r\nX: " + b"y" * 70_000,
        b"Host: localhost\r\n" + b"a: b\r\n" * 150 + b"c: d", b"Host: localhost\r\nX: \x7f",
        b"Host: localhost\r\nX: \x01", b"Host: localhost\r\n\0: 1",
    ]  # fmt: skip
    return _get(chance.choice(odd) + b"\r\n")


def _odd_host(chance: random.Random) -> bytes:
    odd = [
        b"",
        b"Host: a\r\nHost: b\r\n",
        b"Host: localhost\r\nhost: localhost\r\n",
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
        b"GET /health", b"GET /health ", b"GET  /health HTTP/1.1", b"GET /health  HTTP/1.1", b"GET\t/health HTTP/1.1",
        b"GET /health HTTP/1.1 ",
        b"GET /health HTTP/0.9", b"get /health HTTP/1.1", b"GETX /health HTTP/1.1", b"GET /health HTTP/1.2",
        b"GET /health HTTP/2.0", b"GET /health HTTP/11", b"GET /health http/1.1", b" GET /health HTTP/1.1",
        b"GET /health HTTP/1.1\0", b"GET health HTTP/1.1", b"GET /a b HTTP/1.1", b"GET /\xff HTTP/1.1",
        b"GET /\0 HTTP/1.1", b"G\xffT / HTTP/1.1",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1", b"GET / ICE/1.0", b"GET http:// HTTP/1.1", b"GET h: HTTP/1.1",
        b"GET ? HTTP/1.1",
        b"CONNECT h:80 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET /%zz HTTP/1.1", b"GET /%00 HTTP/1.1",
        b"GET /..;/x HTTP/1.1", b"SOURCE /x HTTP/1.1",
        b"\r\n\r\nGET /health HTTP/1.1", b"\nGET /health HTTP/1.1", b"\rGET /health HTTP/1.1",
    ]  # fmt: skip
    return _get(b"Host: localhost\r\n", chance.choice(odd))


def _other_protocol(chance: random.Random) -> bytes:
    return chance.choice(
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
            b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(160)),
            b"GET /\r\n", b"GET /\r\n\r\n", b"SSH-2.0-x\r\n", b"EHLO x\r\n", b"\0" * 100, b"\r\n" * 100,
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n" + _get(b"Host: localhost\r\n"), b"*1\r\n$4\r\nPING\r\n",
            chance.randbytes(200),
        ]
    )  # fmt: skip


def _body_of_get(chance: random.Random) -> bytes:
    body = chance.choice([b"x", HIDDEN])
    framing = chance.choice([b"Content-Length: %d\r\n" % len(body), b""])
    return _get(b"Host: localhost\r\n" + framing) + body


def _odd_form(chance: random.Random) -> bytes:
    """An upload. Nothing is ever stored, since none of them has a purpose."""
    part = b"--b\r\nContent-Disposition: form-data; name=%b\r\n\r\n%b\r\n"
    file, purpose = part % (b'"file"; filename="a"', b'{"a": 1}\n'), part % (b'"purpose"', b"none")
    odd = [
        b"", b"--b", b"--b--", b"--b--\r\n" * 50, b"--b\r\n" * 50, b"\r\n--b\r\n\r\n" * 20,
       
        b"--bb\r\n" + file, b"x" + file, file, file + b"--b--", file + file + b"--b--",
        purpose + b"--b--", file + purpose + b"--b--", purpose * 20 + b"--b--",
        part % (b'"file"; filename="../../a\0"', b"\xff" * 100) + b"--b--",
        part % (b'"' * 1000, b"") + b"--b--", part % (b'"file"', b"") + b"--b--",
        part % (b"file; filename*=x''%zz", b"{}"),
        b"--b\r\n" + b"A: b\r\n" * 1000 + b"\r\n--b--", file.replace(b"\r\n", b"\n") + b"--b--",
        (file + purpose + b"--b--")[: chance.randrange(200)],
    ]  # fmt: skip
    body = chance.choice(odd)
    media_type = chance.choice(
        [b"multipart/form-data; boundary=b"] * 8 + [b"multipart/form-data", b"multipart/x; boundary=b"]
    )
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (media_type, len(body)) + body


ATTACKS: Sequence[Callable[[random.Random], bytes]] = (
    _length_beside_chunks, _two_lengths, _odd_length, _huge_length, _odd_encoding, _odd_chunks, _odd_line_ends,
    _odd_header,
    _odd_host, _odd_request_line, _other_protocol, _body_of_get, _odd_form,
)  # fmt: skip
