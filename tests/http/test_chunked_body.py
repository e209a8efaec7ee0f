from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.chunked_body import ChunkedBody

BODIES = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


@given(BODIES, st.lists(st.integers(1, 30), max_size=40), st.sampled_from([b"", b";a=1", b'; b="7ff"']))
def test_the_sizes_are_those_of_the_chunks_however_they_come(chunks: list[bytes], cuts: list[int], extension: bytes):
    wire = b"".join(b"%X%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    wire += b"0\r\nTrailer: 7\r\n\r\nff\r\n"
    body = ChunkedBody()
    for cut in [*cuts, len(wire)]:
        body.feed(wire[:cut])
        wire = wire[cut:]
    assert body.declared_bytes == sum(map(len, chunks))


def test_a_chunk_counts_before_it_comes():
    body = ChunkedBody()
    body.feed(b"3\r\nabc\r\nffff")
    assert body.declared_bytes == 3
    body.feed(b"\r\n")
    assert body.declared_bytes == 3 + 0xFFFF


@pytest.mark.parametrize("line", [b"", b"g", b"-5", b"0x5", b"5 5", b"\xff", b"5_0"])
def test_what_is_no_size_is_left_to_the_parser(line: bytes):
    body = ChunkedBody()
    body.feed(line + b"\r\nfff\r\n")
    assert body.declared_bytes == 0


def test_a_line_without_end_is_not_kept():
    body = ChunkedBody()
    for _ in range(100):
        body.feed(b"0" * 100_000)
    assert len(body._size_line) < 100
