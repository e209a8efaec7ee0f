from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from service.errors import AdapterError
from service.lora.tensor_file import DTYPES, opened_tensors, write_tensors
from tests.examples import examples

LIMITS = (4096, 1 << 20)
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def written(file: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def refusal(file: Path) -> str:
    with pytest.raises(AdapterError) as refused, opened_tensors(file, *LIMITS):
        pass
    assert refused.value.message.startswith(f"{file.name}: ")
    return refused.value.message


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("seed", range(examples(10)))
def test_what_the_library_writes_is_read(tmp_path: Path, seed: int):
    torch.manual_seed(seed)
    shapes = torch.randint(1, 7, (6, 2)).tolist()
    tensors = {f"t{i}": torch.randn(shape).to(FLOATS[(seed + i) % 3]) for i, shape in enumerate(shapes)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    with opened_tensors(tmp_path / "a.safetensors", *LIMITS) as file:
        assert file.tensors.keys() == tensors.keys()
        for name in sorted(tensors, reverse=seed % 2 == 1):
            found = file.read(name)
            assert found.dtype == tensors[name].dtype
            assert torch.equal(found, tensors[name])


def test_a_file_that_shrinks_while_it_is_read_is_a_refusal(tmp_path: Path):
    """A file that is mapped ends the process at this place."""
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(100_000), "b": torch.ones(100_000)}, file)
    with opened_tensors(file, *LIMITS) as opened:
        os.truncate(file, 1000)
        with pytest.raises(AdapterError, match="was cut short while it was read"):
            opened.read("b")


def test_bytes_that_are_not_the_shapes_are_a_refusal(tmp_path: Path):
    file = written(tmp_path / "a.safetensors", {"a": entry([3], 0, 8)}, bytes(8))
    with opened_tensors(file, *LIMITS) as opened, pytest.raises(AdapterError, match="a has 8 bytes"):
        opened.read("a")


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"", b"", "is not a safetensors file"),
        (b"{", b"", "its header is not JSON"),
        (b"[" * 4000, b"", "its header is not JSON"),
        (b"[]", b"", "its header is not a JSON object"),
        ({"a": entry([2], 0, 8)}, bytes(7), "is cut short: 7 bytes of weights instead of 8"),
        ({"a": entry([2], 0, 8)}, bytes(9), "is damaged: 9 bytes of weights instead of 8"),
        ({"a": entry([2], 1, 9)}, bytes(9), "overlap or leave gaps"),
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12), "overlap or leave gaps"),
        ({"a": entry([2], 0, 8), "b": entry([2], 9, 17)}, bytes(17), "overlap or leave gaps"),
        ({"a": entry([2], 8, 0)}, b"", "overlap or leave gaps"),
        ({"a": entry([-2], 0, 8)}, bytes(8), "does not describe tensors"),
        ({"a": entry([True], 0, 8)}, bytes(8), "does not describe tensors"),
        ({"a": entry([2.0], 0, 8)}, bytes(8), "does not describe tensors"),
        ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), "does not describe tensors"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, bytes(8), "does not describe tensors"),
        ({"a": {"dtype": 1, "shape": [2], "data_offsets": [0, 8]}}, bytes(8), "does not describe tensors"),
        ({"a": 1}, b"", "does not describe tensors"),
    ],
)
def test_a_header_that_is_none(tmp_path: Path, header: object, data: bytes, message: str):
    assert message in refusal(written(tmp_path / "a.safetensors", header, data))


def test_a_long_header_is_not_read(tmp_path: Path):
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(2)}, file, metadata={"much": "x" * LIMITS[0]})
    assert "has a header of more than 4096 bytes" in refusal(file)
    file.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    assert "has a header of more than 4096 bytes" in refusal(file)


def test_a_large_file_is_not_read(tmp_path: Path):
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"")
    os.truncate(file, sum(LIMITS) + 1)
    assert f"has {sum(LIMITS) + 1} bytes" in refusal(file)


def test_a_pointer_of_git_lfs_is_told_apart(tmp_path: Path):
    file = tmp_path / "a.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in refusal(file)


def test_no_file_and_no_permission_name_no_path(tmp_path: Path):
    assert refusal(tmp_path / "a.safetensors") == "a.safetensors: cannot be read: No such file or directory"


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.dictionaries(
        st.text(), ANY_JSON | st.fixed_dictionaries({"dtype": ANY_JSON, "shape": ANY_JSON, "data_offsets": ANY_JSON})
    )
)
def test_any_header_is_read_or_refused(tmp_path: Path, header: dict):
    file = written(tmp_path / "a.safetensors", header)
    try:
        with opened_tensors(file, 1 << 20, 1 << 20) as opened:
            assert all(stored.begin == stored.end == 0 for stored in opened.tensors.values())
    except AdapterError as refused:
        assert refused.message.startswith("a.safetensors: ")


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_any_byte_that_is_changed_is_read_or_refused(tmp_path: Path, place: int, value: int):
    content = bytearray(save({"a": torch.ones(4, 3), "b": torch.zeros(5)}))
    content[place % len(content)] = value
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    try:
        with opened_tensors(file, *LIMITS) as opened:
            for name, stored in opened.tensors.items():
                if stored.dtype == "F32":
                    assert opened.read(name).shape == stored.shape
    except AdapterError as refused:
        assert refused.message.startswith("a.safetensors: ")


@given(st.lists(st.tuples(st.sampled_from(list(DTYPES.values())), st.integers(0, 5), st.integers(1, 3)), max_size=5))
def test_what_is_written_is_what_the_library_and_this_reader_read(tmp_path_factory, shapes):
    file = tmp_path_factory.getbasetemp() / "written.safetensors"
    tensors = {f"t{at}": torch.randn(rows, width).to(dtype) for at, (dtype, rows, width) in enumerate(shapes)}
    with file.open("wb") as opened:
        write_tensors(opened, tensors, {"about": "é"})
    with opened_tensors(file, 10_000, 10_000) as read:
        assert read.metadata == {"about": "é"}
        assert read.tensors.keys() == tensors.keys()
        assert all(torch.equal(read.read(name), tensor) for name, tensor in tensors.items() if tensor.numel())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_file(file).items())
