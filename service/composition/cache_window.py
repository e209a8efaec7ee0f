"""How much of the KV cache sequences hold where layers have a sliding window, by the model, the settings and the
device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.core.layer_groups import LayerGroups
from service.kvcache.attention_window import AttentionWindow
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.models.model_config import ModelConfig


def overlaps(settings: Settings, *, is_gpu: bool) -> bool:
    """Whether the next iteration is launched while one runs. Not on a CPU, where an iteration occupies the cores
    itself."""
    return is_gpu if settings.overlap is None else settings.overlap


def attention_window(
    settings: Settings,
    config: ModelConfig,
    groups: LayerGroups,
    max_model_len: int,
    max_num_batched_tokens: int,
    *,
    is_gpu: bool,
) -> AttentionWindow | None:
    """None if no layer frees blocks behind a window."""
    most_new = (2 if overlaps(settings, is_gpu=is_gpu) else 1) * max_num_batched_tokens
    return AttentionWindow.of_layers(groups, config.sliding_windows, max_model_len, most_new)
