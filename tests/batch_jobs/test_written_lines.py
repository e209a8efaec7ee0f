from __future__ import annotations

import random
from pathlib import Path

from service.batch_jobs.written_lines import WrittenLines


def test_every_line_is_read_once_when_it_is_whole_however_it_is_written(tmp_path: Path) -> None:
    """Written in pieces, moved, broken off by a full disk and written again."""
    chance = random.Random(3)
    paths = [tmp_path / "a", tmp_path / "b"]
    expected: list[list[bytes]] = [[], []]
    reader, read = WrittenLines(2), list[bytes]()
    assert reader.read(paths) == [], "they are not there yet"
    files = [path.open("ab", buffering=0) for path in paths]
    for step in range(300):
        number = chance.randrange(2)
        line = b"%d:%d:" % (number, len(expected[number])) + b"x" * chance.choice((0, 3, 500, 9000))
        size, cut = files[number].tell(), chance.randrange(len(line) + 1)
        files[number].write(line[:cut])
        if chance.random() < 0.3:
            read += reader.read(paths)
        if chance.random() < 0.2:
            files[number].truncate(size)
            cut = 0
        files[number].write(line[cut:] + b"\n")
        expected[number].append(line)
        if chance.random() < 0.3:
            read += reader.read(paths)
        if step == 150:
            read += reader.read(paths)
            for name, path in enumerate(paths):
                path.rename(tmp_path / f"moved-{name}")
            paths = [tmp_path / "elsewhere", tmp_path / "nowhere"]
    while found := reader.read([*paths[:1], None]):
        read += found
    reader.close()
    assert [[line for line in read if line.startswith(b"%d:" % n)] for n in range(2)] == expected
    for file in files:
        file.close()


def test_what_is_read_at_once_is_bounded(tmp_path: Path) -> None:
    path, line = tmp_path / "a", b"x" * 100_000
    path.write_bytes((line + b"\n") * 100)
    reader = WrittenLines(1)
    pieces = []
    while found := reader.read([path]):
        pieces.append(len(found))
    reader.close()
    assert sum(pieces) == 100
    assert max(pieces) <= 11
