from __future__ import annotations

from pathlib import Path

import pytest

from service.composition.storage import SCHEMAS, make_storage
from service.settings.reader import read_settings


def test_it_lies_where_the_settings_say_and_holds_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = make_storage(read_settings(["--data-dir", str(tmp_path / "a"), "--max-storage-gib", "0.5"]))
    assert (storage.folder, storage.budget.max_bytes) == (tmp_path / "a", 2**29)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert make_storage(read_settings([])).folder == tmp_path / "xdg" / "headrace"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # which the specification tells to ignore
    assert make_storage(read_settings([])).folder == Path("~/.local/share/headrace").expanduser()
    assert list(tmp_path.iterdir()) == [], "nothing is made before it is used"


def test_the_names_of_schemas_differ() -> None:
    assert len({schema.name for schema in SCHEMAS} | {"files"}) == len(SCHEMAS) + 1
