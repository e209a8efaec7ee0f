"""Which layers see only a sliding window of tokens, from config.json."""

from __future__ import annotations

from service.errors import ModelLoadError
from service.models.config_fields import ConfigFields

_FULL, _SLIDING = "full_attention", "sliding_attention"


def parse_sliding_windows(architecture: str, fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """`layer_types`, if present, names each layer's kind. Otherwise:

    Mistral           every layer; 4096 tokens by default, null for none
    Qwen2, Qwen3      if `use_sliding_window`: layers from `max_window_layers` on
    Qwen3-MoE         if `use_sliding_window`: every layer
    Mixtral, Phi-3    every layer, if `sliding_window` is present
    gpt-oss           every other layer, starting with the first; 128 tokens by default
    """
    window, first_layer = None, 0
    if architecture == "MistralForCausalLM":
        is_written = "sliding_window" in fields
        window = None if is_written and fields.get("sliding_window") is None else fields.size("sliding_window", 4096)
    elif architecture in {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}:
        if fields.flag("use_sliding_window"):
            window, first_layer = fields.size("sliding_window", 4096), fields.count("max_window_layers", 28)
    elif architecture == "Qwen3MoeForCausalLM":
        window = fields.size("sliding_window", 4096) if fields.flag("use_sliding_window") else None
    elif architecture in {"MixtralForCausalLM", "Phi3ForCausalLM"}:
        window = None if fields.get("sliding_window") is None else fields.size("sliding_window")
    elif architecture == "GptOssForCausalLM":
        window = fields.size("sliding_window", 128)
    else:
        fields.require("use_sliding_window", False)
    windows = (None,) * min(first_layer, num_layers) + (window,) * max(0, num_layers - first_layer)
    kinds = fields.get("layer_types")
    if kinds is None and architecture == "GptOssForCausalLM":
        return tuple(None if layer % 2 else window for layer in range(num_layers))
    if kinds is None:
        return windows
    known = [kind for kind in kinds if kind in (_FULL, _SLIDING)] if isinstance(kinds, list) else []
    if known != kinds or len(known) != num_layers:
        raise ModelLoadError(f"{fields.source}: layer_types must name {_FULL!r} or {_SLIDING!r} for each layer")
    if _SLIDING in known and window is None:
        raise ModelLoadError(f"{fields.source}: layer_types has {_SLIDING!r}, but no sliding window is configured")
    return tuple(window if kind == _SLIDING else None for kind in known)
