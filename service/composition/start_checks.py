"""Checks of the model before anything is loaded: without torch and the network, in a fraction of a second."""

from __future__ import annotations

from service.config import ONE_PROCESS, ModelSource, ParallelConfig
from service.models.context_length import context_length
from service.models.folder_checks import check_config, check_model_folder
from service.models.implementation import choose_implementation
from service.models.model_config import parse_model_config, read_config
from service.models.model_folder import local_folder
from service.models.rank_division import check_divides, check_stages
from service.text.chat_template import check_template_file, load_chat_template


def check_model_source(source: ModelSource, parallel: ParallelConfig = ONE_PROCESS) -> None:
    """ConfigError if the model on this machine cannot be served, or not by this many ranks. A hub id is not checked
    yet."""
    folder = local_folder(source.model, source.revision)
    if folder is not None and source.load_format == "dummy":
        check_config(folder, source.implementation, source.quantization)
    elif folder is not None:
        is_torch = source.load_format == "pt"
        check_model_folder(folder, source.implementation, torch_format=is_torch, quantization=source.quantization)
    text_folder = folder if source.tokenizer is None else local_folder(source.tokenizer, None, "tokenizer")
    if folder is not None:
        fields = read_config(folder)
        if choose_implementation(fields, source.implementation, source.quantization) == "native":
            config = parse_model_config(fields, source.quantization)
            context_length(config, source.max_model_len)
            check_stages(config, parallel.num_stages)
            check_divides(config, parallel.tensor_size)
    if text_folder is not None:
        load_chat_template(text_folder, source.chat_template)
    elif source.chat_template is not None:
        check_template_file(source.chat_template)
