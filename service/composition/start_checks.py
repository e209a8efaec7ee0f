"""What of the settings' model can be told before anything is loaded: no torch, no network, a fraction of a second."""

from __future__ import annotations

from service.config import ModelSource
from service.models.context_length import context_length
from service.models.folder_checks import check_config, check_model_folder
from service.models.model_config import load_model_config
from service.models.model_folder import local_folder
from service.models.rank_division import check_divides
from service.text.chat_template import check_template_file, load_chat_template


def check_model_source(source: ModelSource, num_ranks: int = 1) -> None:
    """Raises ConfigError if what is there, on this machine, cannot be served, or not by so many ranks; a hub id may yet
    turn out so."""
    folder = local_folder(source.model, source.revision)
    if folder is not None and source.load_format == "dummy":
        check_config(folder)
    elif folder is not None:
        check_model_folder(folder, torch_format=source.load_format == "pt")
    text_folder = folder if source.tokenizer is None else local_folder(source.tokenizer, None, "tokenizer")
    if folder is not None:
        config = load_model_config(folder)
        context_length(config, source.max_model_len)
        check_divides(config, num_ranks)
    if text_folder is not None:
        load_chat_template(text_folder, source.chat_template)
    elif source.chat_template is not None:
        check_template_file(source.chat_template)
