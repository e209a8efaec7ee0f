from __future__ import annotations

import socket
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import pytest

from service.errors import ModelLoadError
from service.models.model_folder import resolve_model_folder, resolve_tokenizer_folder
from service.settings.quickstart import QUICKSTART_MODEL


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
        resolve_tokenizer_folder("/nowhere")


@pytest.mark.parametrize("model", ["some/Model-0.6B-GGUF", "model.gguf"])
def test_gguf_is_refused_by_its_name_without_the_network(model: str, no_network: None):
    with pytest.raises(ModelLoadError, match=f"'{model}' is GGUF, llama.cpp's format, .*; serve"):
        resolve_model_folder(model, None)


def test_a_file_is_no_folder(tmp_path: Path, no_network: None):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelLoadError, match="is a file; give the folder that holds it"):
        resolve_model_folder(str(tmp_path / "model.safetensors"), None)


def test_a_revision_of_a_local_folder_is_refused_and_not_ignored(tmp_path: Path, no_network: None):
    with pytest.raises(ModelLoadError, match="revision: 'v2' can only be given with a hub id"):
        resolve_model_folder(str(tmp_path), "v2")


def test_a_hub_id_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text((QUICKSTART_MODEL / "config.json").read_text())
    refs = tmp_path / "models--org--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model_folder("org/tiny", None).resolve() == snapshot.resolve()
    with pytest.raises(ModelLoadError, match="'org/absent' is not a local folder and could not be fetched"):
        resolve_model_folder("org/absent", None)


class Hub:
    """Stands in for the hub: a repository of a config.json, and what was asked of it."""

    def __init__(self, folder: Path, config: str) -> None:
        (folder / "config.json").write_text(config)
        self._folder = folder
        self.fetched: list[str] = []

    def fetch(self, model: str, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert any(fnmatch("consolidated.safetensors", pattern) for pattern in ignore_patterns)
        self.fetched += allow_patterns
        return str(self._folder)

    def has_sent(self, file: str) -> bool:
        return any(fnmatch(file, pattern) for pattern in self.fetched)


@pytest.mark.parametrize(
    ("load_format", "sent"),
    [("auto", {"model.safetensors"}), ("pt", {"pytorch_model-1.bin"}), ("dummy", set())],
)
def test_only_weights_of_the_format_that_is_read_are_fetched(
    load_format: Literal["auto", "pt", "dummy"], sent: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hub = Hub(tmp_path, (QUICKSTART_MODEL / "config.json").read_text())
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.fetch)
    assert resolve_model_folder("org/tiny", "main", load_format) == tmp_path
    assert {"merges.txt", "*.json"} <= set(hub.fetched)
    assert {file for file in ("model.safetensors", "pytorch_model-1.bin") if hub.has_sent(file)} == sent


def test_weights_of_a_model_that_is_not_served_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hub = Hub(tmp_path, '{"architectures": ["BertModel"]}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.fetch)
    with pytest.raises(ModelLoadError, match="'BertModel' is not supported"):
        resolve_model_folder("org/tiny", None)
    assert not hub.has_sent("model.safetensors")


def test_of_a_tokenizer_no_weights_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hub = Hub(tmp_path, "{}")
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.fetch)
    assert resolve_tokenizer_folder("org/tiny") == tmp_path
    assert hub.has_sent("tokenizer.json")
    assert not hub.has_sent("model.safetensors")
