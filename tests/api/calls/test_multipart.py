from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.calls.multipart import MultipartReader, PartBegin, PartData, PartEnd, boundary_of
from service.errors import InvalidRequest, RequestError, UnsupportedMediaType
from tests.examples import examples

BOUNDARY = b"b-7"
Parts = Sequence[tuple[str, str | None, bytes]]


def body_of(parts: Parts, boundary: bytes = BOUNDARY) -> bytes:
    body = b""
    for name, filename, data in parts:
        disposition = f'form-data; name="{name}"' + ("" if filename is None else f'; filename="{filename}"')
        body += b"--%b\r\nContent-Disposition: %b\r\nContent-Type: text/plain\r\n\r\n" % (
            boundary,
            disposition.encode(),
        )
        body += data + b"\r\n"
    return body + b"--%b--\r\n" % boundary


def read(pieces: Sequence[bytes]) -> Parts:
    reader, parts = MultipartReader(BOUNDARY), []
    data = b""
    for piece in pieces:
        for event in reader.feed(piece):
            match event:
                case PartBegin():
                    begun, data = event, b""
                case PartData(more):
                    assert more
                    data += more
                case PartEnd():
                    parts.append((begun.name, begun.filename, data))
    reader.finish()
    return parts


def cut(body: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(body), *(at % (len(body) + 1) for at in cuts)})
    return [body[start:end] for start, end in itertools.pairwise(places)]


near_boundaries = st.lists(
    st.sampled_from([b"\r\n--b-7", b"\r\n--b-", b"\r\n", b"\r", b"--", b"--b-7--", b"x", b"\n", b"\r\n\r\n"]),
    max_size=6,
).map(b"".join)
data = st.one_of(st.binary(max_size=60), near_boundaries).filter(
    lambda data: b"\r\n--" + BOUNDARY not in b"\r\n" + data
)
names = st.text(st.characters(categories=["L", "N"], include_characters=" .-_[]/"), min_size=1, max_size=12).map(
    str.strip
)


@given(
    st.lists(st.tuples(names.filter(bool), st.none() | names, data), max_size=4),
    st.lists(st.integers(0)),
)
def test_however_it_is_cut_every_part_is_what_was_sent(parts: Parts, cuts: list[int]) -> None:
    assert read(cut(body_of(parts), cuts)) == parts


@given(st.one_of(st.binary(max_size=200), near_boundaries), st.lists(st.integers(0), max_size=8), st.integers(0))
@settings(max_examples=examples(300))
def test_broken_bodies_are_refused_or_read_and_never_anything_else(body: bytes, cuts: list[int], at: int) -> None:
    whole = body_of([("a", None, b"1"), ("file", "f", b"2")])
    at %= len(whole)
    for broken in (body, whole[:at] + body + whole[at:], whole[:at]):
        outcomes = set()
        for pieces in ([broken], cut(broken, cuts)):
            try:
                outcomes.add(repr(read(pieces)))
            except RequestError as error:
                outcomes.add(error.message)
        assert len(outcomes) == 1, "how it is cut does not matter"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "ends before its last boundary"),
        (b"--b-7", "ends before"),
        (body_of([("a", None, b"1")])[:-4], "ends before"),
        (b"preamble\r\n--b-7--", "does not begin with its boundary"),
        (b"--b-7xx", "is not followed by a line break"),
        (b"--b-7\r\nContent-Type: text/plain\r\n\r\n", "has no field name"),
        (b"--b-7\r\nContent-Disposition: attachment; name=a\r\n\r\n", "has no field name"),
        (b"--b-7\r\nContent-Disposition: form-data; name=\xff\r\n\r\n", "not UTF-8"),
        (b"--b-7\r\nContent-Transfer-Encoding: base64\r\n\r\n", "Content-Transfer-Encoding"),
        (b"--b-7\r\n" + b"a: b\r\n" * 1000, "at most 4096 bytes"),
        (body_of([("a", None, b"")] * 17), "at most 16 parts"),
    ],
)
def test_what_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read([body])


def test_what_follows_the_last_boundary_is_nobodys() -> None:
    assert read([body_of([("a", None, b"1")]), b"--b-7\r\n" * 100]) == [("a", None, b"1")]


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b/c"', b"a b/c"),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=" + "x" * 71, None),
        ('multipart/form-data; boundary="a\xff"', None),
        ("multipart/mixed; boundary=abc", None),
        ("application/json", None),
        ("", None),
    ],
)
def test_the_boundary_is_the_headers(content_type: str, boundary: bytes | None) -> None:
    if boundary is None:
        with pytest.raises(UnsupportedMediaType):
            boundary_of(content_type)
    else:
        assert boundary_of(content_type) == boundary
