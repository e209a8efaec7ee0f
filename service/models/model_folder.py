"""Where a model's files are: a local folder as it is, or a hub id through the Hugging Face cache."""

from __future__ import annotations

from pathlib import Path

from service.errors import ModelLoadError

FILES = ("*.json", "*.jinja", "merges.txt")
"""What serving reads of a hub repository, besides its weights."""

WEIGHTS = "*.safetensors"
TORCH_WEIGHTS = "pytorch_model*.bin"

COPIES = ("consolidated*", "original/*", "onnx/*")
"""The same weights once more, in forms that are not read."""


def resolve_model_folder(
    model: str, revision: str | None, setting: str = "model", *, torch_format: bool = False
) -> Path:
    """The folder with the model's files. A local folder never causes network traffic.

    A hub id is downloaded unless the cache has it (or HF_HUB_OFFLINE is set). setting: what named the model.
    torch_format: its weights are wanted in torch's own format instead of safetensors. Raises ModelLoadError.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ModelLoadError(f"revision: {revision!r} means nothing to a local folder; it belongs to a hub id")
        return folder
    if not _looks_like_hub_id(model):
        raise ModelLoadError(f"{setting}: {model!r} is neither a folder nor a hub id such as 'name/model'")
    return _from_hub(model, revision, setting, TORCH_WEIGHTS if torch_format else WEIGHTS)


def _looks_like_hub_id(model: str) -> bool:
    return not model.startswith((".", "/", "~")) and model.count("/") <= 1


def _from_hub(model: str, revision: str | None, setting: str, weights: str) -> Path:
    # A heavy import that a local folder does not need.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        wanted, copies = [*FILES, weights], list(COPIES)
        return Path(snapshot_download(model, revision=revision, allow_patterns=wanted, ignore_patterns=copies))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as fault:
        reason = " ".join(str(fault).split())
        raise ModelLoadError(f"{setting}: {model!r} is no folder here and could not be fetched: {reason}") from fault
