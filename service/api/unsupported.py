"""Fields of the API that are known but not honoured: accepted at their defaults, else refused by name.

A field that becomes supported moves from here into the wire shapes; one that only chat has stays, for completions.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.errors import UnsupportedParameter

_HARMLESS = frozenset({"metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
"""Labels for the operator's own use; they do not change the answer."""

_DEFAULTS: dict[str, tuple[object, ...]] = {
    # what comes back
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "spaces_between_special_tokens": (True,),
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
    # the prompt
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "prompt_embeds": (),
    "add_special_tokens": (),
    "documents": ([],),
    # handling
    "store": (False,),
}
"""Field -> the values (besides null) at which it asks for nothing."""


def check_extra_fields(extra: Mapping[str, object]) -> tuple[str, ...]:
    """Names of the fields that nobody knows; UnsupportedParameter for one that is known and not at its default."""
    unknown = []
    for name, value in extra.items():
        if name in _DEFAULTS:
            _check_default(name, value)
        elif name not in _HARMLESS:
            unknown.append(name)
    return tuple(unknown)


def _check_default(name: str, value: object) -> None:
    if value is None or any(value == default and type(value) is type(default) for default in _DEFAULTS[name]):
        return
    if isinstance(value, float) and value in _DEFAULTS[name]:
        return
    raise UnsupportedParameter(f"{name} is not supported yet.", param=name)
