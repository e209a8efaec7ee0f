"""Known fields of the API that are not supported: accepted at their defaults, else refused by name.

A field that becomes supported moves from here into the wire shapes; one that only one endpoint supports stays here for
the others. Fields of vLLM and SGLang are listed if ignoring them would change the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.errors import UnsupportedParameter
from service.protocol.generation import WireRequest

_HARMLESS = frozenset({"metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
"""Labels for the operator's own use; they do not change the answer."""

_DEFAULTS: dict[str, tuple[object, ...]] = {
    # what comes back
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "spaces_between_special_tokens": (True,),
    "return_prompt_text": (False,),
    "return_hidden_states": (False,),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    # form of the output
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "guided_json_object": (False,),
    "guided_whitespace_pattern": (),
    "stop_regex": ([],),
    # which tokens are drawn
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "repetition_detection": (),
    "vllm_xargs": ({},),
    "lora_path": (),
    # the prompt
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "prompt_embeds": (),
    "add_special_tokens": (False,),
    "documents": ([],),
    # handling
    "store": (False,),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
}
"""Field -> the values, besides null, at which it has no effect."""


def check_extra_fields(extra: Mapping[str, object]) -> tuple[str, ...]:
    """Names of unknown fields; UnsupportedParameter for a known one that is not at its default."""
    unknown = []
    for name, value in extra.items():
        if name in _DEFAULTS:
            _check_default(name, value)
        elif name not in _HARMLESS:
            unknown.append(name)
    return tuple(unknown)


def extra_fields(where: str, shape: WireRequest) -> tuple[str, ...]:
    """Names of unknown fields in a part of the body, prefixed with the name of the part."""
    return tuple(f"{where}.{name}" for name, value in (shape.model_extra or {}).items() if value is not None)


def _check_default(name: str, value: object) -> None:
    if value is None or any(value == default and type(value) is type(default) for default in _DEFAULTS[name]):
        return
    if isinstance(value, float) and value in _DEFAULTS[name]:
        return
    raise UnsupportedParameter(f"{name} is not supported yet.", param=name)
