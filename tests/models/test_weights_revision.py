from __future__ import annotations

from service.models.weights_revision import weights_revision


def folder_of(tmp_path, name, weights=b"\0" * 1000, config=b"{}", file="model.safetensors"):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_bytes(config)
    (folder / file).write_bytes(weights)
    return folder


def test_it_follows_the_weights_and_not_the_place(tmp_path):
    first = weights_revision(folder_of(tmp_path, "a"))
    assert weights_revision(folder_of(tmp_path, "b")) == first
    others = [
        folder_of(tmp_path, "c", weights=b"\0" * 999 + b"\1"),
        folder_of(tmp_path, "d", weights=b"\0" * 1001),
        folder_of(tmp_path, "e", config=b"{ }"),
        folder_of(tmp_path, "f", file="other.safetensors"),
    ]
    assert len({first, *map(weights_revision, others)}) == 5


def test_of_a_large_file_the_ends_count(tmp_path):
    size = 20 << 20
    plain = weights_revision(folder_of(tmp_path, "a", weights=b"\0" * size))
    assert weights_revision(folder_of(tmp_path, "b", weights=b"\1" + b"\0" * (size - 1))) != plain
    assert weights_revision(folder_of(tmp_path, "c", weights=b"\0" * (size - 1) + b"\1")) != plain
