"""Which files of a model folder hold its weights. Imports no torch: a folder is looked at before torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from service.errors import ModelLoadError
from service.models.config_fields import read_json

TORCH_SUFFIX = ".bin"

_SAFETENSORS, _TORCH = "model.safetensors", "pytorch_model.bin"
"""A folder's single file in either format. An index is named after the file that it replaces."""
_HOW_TO_UNPICKLE = (
    "By default only safetensors are read. With load-format pt, pytorch_model.bin is read, which is a pickle: use it"
    " only if you trust its author"
)
_LFS_POINTER = b"version https://git-lfs.github.com/"
_MAX_NAMED = 8  # how many errors of one kind a message names


def checkpoint_files(folder: Path, torch_format: bool = False) -> list[Path]:
    """The files with a folder's weights: those in its index, or the single one. Raises ModelLoadError."""
    single = _TORCH if torch_format else _SAFETENSORS
    index = folder / f"{single}.index.json"
    if index.exists():
        files = _indexed_files(index)
    elif (folder / single).exists():
        files = [folder / single]
    else:
        hint = "" if torch_format else f". {_HOW_TO_UNPICKLE}"
        raise ModelLoadError(f"no weights in the model folder: neither {single} nor {index.name}{hint}")
    wrong = [file.name for file in files if file.suffix != Path(single).suffix]
    if wrong:
        raise ModelLoadError(f"{index.name}: names files that are not {Path(single).suffix}: {some_of(wrong)}")
    return files


def check_fetched(file: Path) -> None:
    """Raises ModelLoadError for a Git LFS pointer: a repository cloned without LFS has a few lines of text in place of
    each large file."""
    try:
        with file.open("rb") as opened:
            is_pointer = opened.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError as fault:
        raise ModelLoadError(f"{file.name}: cannot be read: {fault.strerror}") from fault
    if is_pointer:
        raise ModelLoadError(f"{file.name}: is a Git LFS pointer, not the file itself; run `git lfs pull`")


def some_of(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:_MAX_NAMED])
    return f"{shown} and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else shown


def _indexed_files(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ModelLoadError(f"{index.name}: weight_map is missing or not a map of names to files")
    files = [index.parent / name for name in sorted(set(weight_map.values()))]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise ModelLoadError(f"{index.name}: names files that are not in the model folder: {some_of(missing)}")
    return files
