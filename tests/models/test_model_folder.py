from __future__ import annotations

import socket
from fnmatch import fnmatch
from pathlib import Path

import pytest

from service.errors import ModelLoadError
from service.models.model_folder import resolve_model_folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("network traffic")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path, no_network: None):
    assert resolve_model_folder(str(tmp_path), None) == tmp_path


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_what_is_neither_folder_nor_hub_id_is_refused(model: str, no_network: None):
    with pytest.raises(ModelLoadError, match="neither a folder nor a hub id"):
        resolve_model_folder(model, None)


def test_the_setting_at_fault_is_named(no_network: None):
    with pytest.raises(ModelLoadError, match="tokenizer: '/nowhere'"):
        resolve_model_folder("/nowhere", None, "tokenizer")


def test_a_revision_of_a_local_folder_is_refused_and_not_ignored(tmp_path: Path, no_network: None):
    with pytest.raises(ModelLoadError, match="revision: 'v2' means nothing to a local folder"):
        resolve_model_folder(str(tmp_path), "v2")


def test_a_hub_id_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "models--org--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model_folder("org/tiny", None).resolve() == snapshot.resolve()
    with pytest.raises(ModelLoadError, match="'org/absent' is no folder here and could not be fetched"):
        resolve_model_folder("org/absent", None)


@pytest.mark.parametrize("torch_format", [False, True])
def test_torchs_own_format_is_fetched_only_where_it_is_asked_for(
    torch_format: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fetched: list[str] = []

    def fetch(model: str, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert any(fnmatch("consolidated.safetensors", pattern) for pattern in ignore_patterns)
        fetched.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert resolve_model_folder("org/tiny", "main", torch_format=torch_format) == tmp_path
    assert {"merges.txt", "*.json"} <= set(fetched)
    assert any(fnmatch("pytorch_model-1.bin", pattern) for pattern in fetched) is torch_format
    assert any(fnmatch("model.safetensors", pattern) for pattern in fetched) is not torch_format
