from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import ConfigError
from service.settings.config_file import did_you_mean, read_config_file

KNOWN = frozenset({"port", "max_num_seqs", "api_key"})


def read(folder: Path, text: str | bytes) -> dict[str, object]:
    file = folder / "headrace.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_config_file(file, KNOWN)


def test_names_with_hyphens_or_underscores(tmp_path: Path):
    assert read(tmp_path, "port: 1\nmax-num-seqs: 2\napi_key: [a, b]\n") == {
        "port": 1,
        "max_num_seqs": 2,
        "api_key": ["a", "b"],
    }


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, text: str):
    assert read(tmp_path, text) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port: [1\n x: }", r"cannot be read as YAML: .*line 1"),
        (b"\xff\xfe\x00", "cannot be read as YAML"),
        ("port: !!python/object/apply:os.getcwd []", "cannot be read as YAML: could not determine a constructor"),
        ("- port\n", "must be a mapping of settings"),
        ("port", "must be a mapping of settings"),
        ("1: 2\n", "1 is not a setting"),
        ("prot: 1\n", r"prot is not a setting; did you mean port\?"),
        ("port: 1\nport: 2\n", "port is given twice"),
        ("max_num_seqs: 1\nmax-num-seqs: 2\n", "max-num-seqs is given twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str | bytes, message: str):
    with pytest.raises(ConfigError, match=f"config: .*{message}") as refusal:
        read(tmp_path, text)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no file"):
        read_config_file(tmp_path, KNOWN)


def test_a_hint_only_where_a_name_is_close():
    assert did_you_mean("prt", KNOWN) == "; did you mean port?"
    assert did_you_mean("colour", KNOWN) == ""
    assert did_you_mean("--prt", KNOWN, "--") == "; did you mean --port?"
    assert did_you_mean("--nonsense", {"seed"}, "--") == "", "what all names begin with makes none alike"
