from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.errors import ModelLoadError
from service.models.checkpoint_files import check_fetched, checkpoint_files


def index(folder: Path, num_files: int) -> list[str]:
    """An index of as many files, and empty files of their names."""
    names = [f"model-{i}.safetensors" for i in range(num_files)]
    for name in names:
        (folder / name).touch()
    weight_map = {f"weight.{i}": name for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return names


def test_an_index_goes_before_the_single_file(tmp_path: Path):
    (tmp_path / "model.safetensors").touch()
    assert [file.name for file in checkpoint_files(tmp_path)] == ["model.safetensors"]
    names = index(tmp_path, 3)
    assert [file.name for file in checkpoint_files(tmp_path)] == names


def test_a_missing_shard_is_named(tmp_path: Path):
    index(tmp_path, 3)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model-1\.safetensors$"):
        checkpoint_files(tmp_path)


def test_missing_shards_are_counted_beyond_a_few(tmp_path: Path):
    for name in index(tmp_path, 20):
        (tmp_path / name).unlink()
    with pytest.raises(ModelLoadError, match="and 12 more"):
        checkpoint_files(tmp_path)


def test_a_folder_without_safetensors(tmp_path: Path):
    with pytest.raises(ModelLoadError, match=r"no weights .* nor model\.safetensors\.index\.json\. By default"):
        checkpoint_files(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no weights .* nor pytorch_model\.bin\.index\.json$"):
        checkpoint_files(tmp_path, torch_format=True)


def test_a_broken_index(tmp_path: Path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="weight_map"):
        checkpoint_files(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ModelLoadError, match=r"gone\.safetensors: cannot be read"):
        check_fetched(tmp_path / "gone.safetensors")
