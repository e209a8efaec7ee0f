"""What of the settings' model can be told before anything is loaded: no torch, no network, a fraction of a second."""

from __future__ import annotations

from service.config import ModelSource
from service.models.folder_checks import check_config, check_model_folder
from service.models.model_folder import local_folder


def check_model_source(source: ModelSource) -> None:
    """Raises ModelLoadError if what is there, on this machine, cannot be served; a hub id may yet turn out so."""
    folder = local_folder(source.model, source.revision)
    if folder is not None and source.load_format == "dummy":
        check_config(folder)
    elif folder is not None:
        check_model_folder(folder, torch_format=source.load_format == "pt")
    if source.tokenizer is not None:
        local_folder(source.tokenizer, None, "tokenizer")
