from __future__ import annotations

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from service.errors import ModelLoadError
from service.layers.shard import Shard
from service.models.checkpoint_file import OpenFiles, read_header, read_tensors


def tensors():
    return {
        "b": torch.randn(3, 4).bfloat16(),
        "a": torch.randn(5),
        "c": torch.randn(2).half(),
        "d": torch.ones(2, dtype=torch.uint8),
    }


def as_safetensors(folder, made):
    save_file(made, folder / "x.safetensors")
    return folder / "x.safetensors"


def as_torch(folder, made):
    torch.save(made, folder / "x.bin")
    return folder / "x.bin"


def as_old_torch(folder, made):
    torch.save(made, folder / "x.bin", _use_new_zipfile_serialization=False)
    return folder / "x.bin"


WAYS = [as_safetensors, as_torch, as_old_torch]


@pytest.mark.parametrize("save", WAYS)
def test_header_and_tensors(save, tmp_path):
    made = tensors()
    file = save(tmp_path, made)
    header = {entry.name: entry for entry in read_header(file)}
    assert {name: entry.shape for name, entry in header.items()} == {"a": (5,), "b": (3, 4), "c": (2,), "d": (2,)}
    assert [header[name].dtype for name in "abc"] == ["F32", "BF16", "F16"]
    assert header["d"].dtype not in {"F32", "BF16", "F16"}
    got = dict(read_tensors(file, dict.fromkeys(("a", "b", "absent"))))
    assert set(got) == {"a", "b"}
    assert all(torch.equal(tensor, made[name]) for name, tensor in got.items())


@pytest.mark.parametrize("save", WAYS)
def test_a_tensor_alone_out_of_a_file_that_is_opened_once(save, tmp_path, monkeypatch):
    made = tensors()
    header = {entry.name: entry for entry in read_header(save(tmp_path, made))}
    assert header["d"].dtype == "U8"
    files = OpenFiles()
    assert torch.equal(files.read(header["c"]), made["c"])
    for opening in ("_opened", "_torch_tensors"):
        monkeypatch.delattr(f"service.models.checkpoint_file.{opening}")
    assert torch.equal(files.read(header["b"]), made["b"])


@pytest.mark.parametrize("save", WAYS)
def test_parts_of_tensors(save, tmp_path):
    made = {"b": torch.randn(6, 8).bfloat16(), "a": torch.randn(5)}
    file = save(tmp_path, made)
    for shard in (Shard(0, 6, (range(1, 3), range(5, 6))), Shard(1, 8, (range(2, 7),)), Shard(1, 8, (range(8),))):
        got = dict(read_tensors(file, {"b": shard, "a": Shard(0, 5, (range(3, 5),))}))
        assert torch.equal(got["b"], shard.of(made["b"]))
        assert torch.equal(got["a"], made["a"][3:])


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda file: file.write_bytes(b"not weights"), "is not a readable torch checkpoint"),
        (lambda file: file.write_bytes(b""), "is not a readable torch checkpoint"),
        (lambda file: file.write_bytes(pickle.dumps(Harmful(), protocol=2)), "is not a readable torch checkpoint"),
        (lambda file: torch.save({"a": Harmful()}, file), "is not a readable torch checkpoint"),
        (lambda file: torch.save([torch.ones(1)], file), "is not a map of names to tensors"),
        (lambda file: torch.save({"a": {"b": torch.ones(1)}}, file), "is not a map of names to tensors"),
    ],
)
def test_what_is_no_checkpoint_is_named_and_never_run(write, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "x.bin"
    write(file)
    with pytest.raises(ModelLoadError, match=rf"x\.bin: {named}"):
        list(read_header(file))
    assert not (tmp_path / "made-by-a-pickle").exists()


@pytest.mark.parametrize("name", ["x.safetensors", "x.bin"])
def test_a_file_that_git_lfs_has_not_fetched(name, tmp_path):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 10432928\n")
    with pytest.raises(ModelLoadError, match=rf"{name}: is a Git LFS pointer, .* run `git lfs pull`"):
        list(read_header(tmp_path / name))


def test_a_file_that_is_no_safetensors(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelLoadError, match=r"x\.safetensors: is not a readable safetensors file"):
        list(read_header(tmp_path / "x.safetensors"))
