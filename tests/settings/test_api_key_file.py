from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import ConfigError
from service.settings.api_key_file import read_api_keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_one_key_a_line_with_comments(file: Path):
    file.write_bytes("\ufeff# of the team\r\n\r\n  ann:sk-a \r\nann:sk-b\nsk-c\n  # ünd\nJürgen:x:sk-d".encode())
    assert read_api_keys(file, "api-key-file") == ("ann:sk-a", "ann:sk-b", "sk-c", "Jürgen:x:sk-d")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no key"),
        (b"# only this\n\n", "holds no key"),
        (b"good\nann:\n", "line 2 is not KEY or NAME:KEY"),
        (b"good\nsecret word\n", "line 2 is not KEY or NAME:KEY"),
        ("secr\u00e9t\n".encode(), "line 1 is not KEY or NAME:KEY"),
        (b"secret\nann:other\nbob:secret\n", "line 3 has the key of line 1"),
        ("secret".encode("utf-16"), "is not text in UTF-8"),
        (b"secret\n" * 200_000, "has more than 1048576 bytes"),
    ],
)
def test_what_is_wrong_is_told_by_its_line_and_never_shown(file: Path, content: bytes, reason: str):
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=reason) as refused:
        read_api_keys(file, "api-key-file")
    assert "secr" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"admin-api-key-file: .*/nowhere cannot be read: No such file"):
        read_api_keys(tmp_path / "nowhere", "admin-api-key-file")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_api_keys(tmp_path, "api-key-file")
