"""Where a model's files are: a local folder, or a hub id through the Hugging Face cache."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from service.errors import ModelLoadError
from service.models.folder_checks import NOT_GGUF, check_config

FILES = ("*.json", "*.jinja", "merges.txt")
"""The files of a hub repository that serving reads, besides its weights."""

WEIGHTS = "*.safetensors"
TORCH_WEIGHTS = "pytorch_model*.bin"

COPIES = ("consolidated*", "original/*", "onnx/*")
"""Copies of the weights in forms that are not read."""


def resolve_model_folder(
    model: str, revision: str | None, load_format: Literal["auto", "pt", "dummy"] = "auto"
) -> Path:
    """The folder with the model's files. A local folder never causes network traffic.

    A hub id is downloaded unless it is in the cache (or HF_HUB_OFFLINE is set). config.json comes first, so a model
    that is not supported costs no download. Raises ModelLoadError.
    """
    folder = local_folder(model, revision)
    if folder is not None:
        return folder
    folder = _from_hub(model, revision, "model", FILES)
    check_config(folder)
    if load_format == "dummy":
        return folder
    return _from_hub(model, revision, "model", (*FILES, TORCH_WEIGHTS if load_format == "pt" else WEIGHTS))


def resolve_tokenizer_folder(tokenizer: str) -> Path:
    """Like `resolve_model_folder`, for the setting `tokenizer`; weights are not fetched."""
    return local_folder(tokenizer, None, "tokenizer") or _from_hub(tokenizer, None, "tokenizer", FILES)


def local_folder(model: str, revision: str | None, setting: str = "model") -> Path | None:
    """The folder, if it is one on this machine; None for a hub id. setting: the setting that named it. Raises
    ModelLoadError."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ModelLoadError(f"revision: {revision!r} can only be given with a hub id, not with a local folder")
        return folder
    is_hub_id = _looks_like_hub_id(model)
    if model.lower().endswith("gguf") and (is_hub_id or folder.is_file()):
        raise ModelLoadError(f"{setting}: {model!r} is GGUF, {NOT_GGUF}")
    if folder.is_file():
        raise ModelLoadError(f"{setting}: {model!r} is a file; give the folder that holds it and its config.json")
    if not is_hub_id:
        raise ModelLoadError(f"{setting}: {model!r} is neither a folder nor a hub id such as 'name/model'")
    return None


def _looks_like_hub_id(model: str) -> bool:
    return not model.startswith((".", "/", "~")) and model.count("/") <= 1


def _from_hub(model: str, revision: str | None, setting: str, wanted: tuple[str, ...]) -> Path:
    # A slow import that a local folder does not need.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns, copies = list(wanted), list(COPIES)
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns, ignore_patterns=copies))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as fault:
        reason = " ".join(str(fault).split())
        raise ModelLoadError(
            f"{setting}: {model!r} is not a local folder and could not be fetched from the hub: {reason}"
        ) from fault
