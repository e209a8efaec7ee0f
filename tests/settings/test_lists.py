from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import ConfigError
from service.settings.reader import read_settings

LISTS = {
    "served_model_name": "a,b",
    "api_key": "one,name:two",
    "admin_api_key": "one,name:two",
    "allowed_hosts": "a.example,*.b.example",
    "allowed_origins": "https://a.example,https://b.example",
    "lora_modules": "a=/x,b=/y",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_written_alike_wherever_it_is_written(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    entries = LISTS[name].split(",")
    flag, file = f"--{name.replace('_', '-')}", tmp_path / "settings.yaml"
    assert [*getattr(read_settings([flag, ", ".join(entries)]), name)] == entries
    file.write_text(f"{flag[2:]}: [{', '.join(map(repr, entries))}]")
    assert [*getattr(read_settings(["--config", str(file)]), name)] == entries
    monkeypatch.setenv(f"HEADRACE_{name.upper()}", LISTS[name])
    assert [*getattr(read_settings([]), name)] == entries


@pytest.mark.parametrize(
    ("flag", "wrong", "said"),
    [
        ("--served-model-name", ",", "is empty"),
        ("--api-key", "name:", "an entry has no key"),
        ("--allowed-hosts", "https://a.example", "is not a host name"),
        ("--lora-modules", "a", "is not NAME=FOLDER"),
        ("--lora-modules", "a=/x,a=/y", "is given twice"),
    ],
)
def test_what_is_wrong_is_said_with_the_settings_name(flag: str, wrong: str, said: str):
    with pytest.raises(ConfigError, match=f"{flag.strip('-')}.*{said}"):
        read_settings([flag, wrong])
