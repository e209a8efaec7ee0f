from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.batch_jobs import batch_input
from service.batch_jobs.batch_input import BatchReader, check_input
from tests.batch_jobs.fake_batches import ENDPOINT, lines


def test_the_lines_that_are_not_done_are_read_once_in_order(tmp_path: Path) -> None:
    """What is wrong with a line: tests/api/endpoints/test_batches.py."""
    path = tmp_path / "in"
    path.write_bytes(b"\n \n" + lines(range(10)) + b"\n\n")
    assert check_input(path, ENDPOINT) == (10, ())
    done = bytearray(8)
    done[3] = done[5] = 1  # lines count from 1, and two are blank
    reader, seen = BatchReader(path), list[tuple[int, str, int]]()
    while read := reader.read(3, 10**6, done):
        assert len(read) <= 3
        seen += [(line.number, line.custom_id, json.loads(line.body)["n"]) for line in read]
    reader.close()
    assert seen == [(n + 3, str(n), n) for n in range(10) if n not in (0, 2)]
    reader = BatchReader(path)
    assert len(reader.read(100, 1, bytearray())) == 1, "one at least, however little is asked for"
    reader.close()


def test_errors_are_bounded_and_so_are_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"{}\n" * 1000)
    assert len(check_input(path, ENDPOINT).errors) == 100
    monkeypatch.setattr(batch_input, "MAX_REQUESTS", 9)
    path.write_bytes(lines(range(10)))
    (error,) = check_input(path, ENDPOINT).errors
    assert error.code == "too_many_requests"


@pytest.mark.parametrize("depth", [200, 260, 1000])
def test_a_line_that_passes_can_be_read(tmp_path: Path, depth: int) -> None:
    """orjson reads deeper than it writes."""
    path = tmp_path / "in"
    first, second, last = lines(range(3)).splitlines()
    deep = second.replace(b'"n"', b'"own": %b, "n"' % (b"[" * depth + b"]" * depth))
    path.write_bytes(b"\n".join((first, deep, last)))
    num_lines, errors = check_input(path, ENDPOINT)
    if errors:
        (error,) = errors
        assert depth > 250 and (error.code, error.line, error.param) == ("invalid_body", 2, "body")
    else:
        reader = BatchReader(path)
        assert len(reader.read(100, 10**6, bytearray())) == num_lines == 3
        reader.close()
