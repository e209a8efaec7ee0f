"""How many tokens one sequence may have. Imports no torch: it is known before torch is loaded."""

from __future__ import annotations

from service.errors import ModelLoadError
from service.models.model_config import ModelConfig


def context_length(config: ModelConfig, wanted: int | None) -> int:
    """By the model and the setting `max-model-len`; wanted None: the model's own. Raises ModelLoadError."""
    if config.longest_context < 2:
        raise ModelLoadError("config.json: the model's context length is 1; a prompt and an answer need 2 tokens")
    if wanted is None:
        return config.max_position_embeddings
    if wanted > config.longest_context:
        raise ModelLoadError(f"max-model-len: {wanted} exceeds the model's context length of {config.longest_context}")
    return wanted
