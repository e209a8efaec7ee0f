"""Quick checks of a model folder, in milliseconds and without torch: whether it can be served, and if not, why and what
to do."""

from __future__ import annotations

from pathlib import Path

from service.errors import ModelLoadError
from service.models.checkpoint_files import check_fetched, checkpoint_files
from service.models.config_fields import read_json
from service.models.implementation import WantedImplementation, choose_implementation
from service.models.model_config import read_config

GGUF = "*.gguf"
NOT_GGUF = "llama.cpp's format, which is not supported; serve the original checkpoint, with safetensors"


def check_model_folder(
    folder: Path,
    implementation: WantedImplementation = "auto",
    *,
    torch_format: bool = False,
    quantization: str | None = None,
) -> None:
    """Check that the folder holds a supported model with its weights. Reads config.json, the index and the first bytes
    of each checkpoint file. torch_format: the weights are wanted in torch's own format. quantization: the setting.
    Raises ModelLoadError."""
    check_config(folder, implementation, quantization)
    try:
        files = checkpoint_files(folder, torch_format)
    except ModelLoadError:
        _check_kind(folder)
        raise
    for file in files:
        check_fetched(file)


def check_config(folder: Path, implementation: WantedImplementation = "auto", quantization: str | None = None) -> None:
    """Like `check_model_folder`, before there are weights. Raises ModelLoadError."""
    if not (folder / "config.json").is_file():
        _check_kind(folder)
        raise ModelLoadError(
            f"model: there is no config.json in {str(folder)!r}; give the folder that holds config.json, the tokenizer"
            " and *.safetensors"
        )
    choose_implementation(read_config(folder), implementation, quantization)


def _check_kind(folder: Path) -> None:
    """Raises ModelLoadError if the folder is something else that is known: adapters, or GGUF."""
    if (folder / "adapter_config.json").is_file():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        of_base = repr(base) if isinstance(base, str) and base else "its base model"
        raise ModelLoadError(
            f"model: {str(folder)!r} is a LoRA adapter; serve {of_base} with --lora-modules NAME={folder}"
        )
    if any(folder.glob("*/adapter_config.json")):
        raise ModelLoadError(
            f"model: the folders in {str(folder)!r} are LoRA adapters; serve their base model with --lora-dir {folder}"
        )
    if any(folder.glob(GGUF)):
        raise ModelLoadError(f"model: {str(folder)!r} holds GGUF, {NOT_GGUF}")
