"""The text part of a model with vision, if it is one of our families: its config fields and its tensor names.

The checkpoint has the text part's weights below a prefix, which differs by family and by the version that saved it. It
also has a vision tower's weights, which are not read. Positions that distinguish image and text (Qwen's mrope) are
plain ones if all is text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_WITH_VISION = frozenset(
    f"{family}ForConditionalGeneration"
    for family in (
        "Gemma3",
        "Idefics3",
        "InternVL",
        "Llava",
        "LlavaNext",
        "LlavaOnevision",
        "Mistral3",
        "Qwen2VL",
        "Qwen2_5_VL",
        "Qwen3VL",
        "SmolVLM",
    )
)
_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "gemma3_text": "Gemma3ForCausalLM",
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen2_vl": "Qwen2ForCausalLM",
        "qwen2_vl_text": "Qwen2ForCausalLM",
        "qwen2_5_vl": "Qwen2ForCausalLM",
        "qwen2_5_vl_text": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_vl_text": "Qwen3ForCausalLM",
    }
)
"""By `model_type` of the text part; that is the model's own if the text fields are at the top level."""
_OF_THE_WHOLE = ("dtype", "torch_dtype", "tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")
_BELOW_A_PREFIX = re.compile(r"(?:model\.)?(?:language_model|text_model)\.(?:model\.)?(.+)")
_TEXT_ALONE = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")


def text_fields(fields: Mapping[str, object]) -> Mapping[str, object] | None:
    """config.json of a model with vision -> the config.json that its text part would have alone. None for any other
    model."""
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or names[0] not in _WITH_VISION:
        return None
    text = fields.get("text_config", fields)
    if not isinstance(text, Mapping) or (architecture := _ARCHITECTURES.get(str(text.get("model_type")))) is None:
        return None
    whole = {name: fields[name] for name in _OF_THE_WHOLE if fields.get(name) is not None}
    return {**text, **whole, "architectures": [architecture]}


def text_name(name: str) -> str | None:
    """A stored tensor's name -> its name in a checkpoint of the text part alone; None if it belongs to another part."""
    below = _BELOW_A_PREFIX.fullmatch(name)
    if below is None:
        return name if name.startswith(_TEXT_ALONE) else None
    return below[1] if below[1].startswith("lm_head.") else f"model.{below[1]}"


def names_in_whole(name: str) -> Sequence[str]:
    """What a tensor or module of the text part may be called in the whole model: the inverse of `text_name`."""
    rest = name.removeprefix("model.")
    parts = "language_model", "text_model"
    return [f"{outer}{part}.{inner}{rest}" for outer in ("model.", "") for part in parts for inner in ("model.", "")]
