"""A call that only has to be submitted: what every wire form of a call is made into, and its answer made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.api.call_head import CallHead
from service.api.calls.output_form import CompiledForm
from service.api.calls.validation import CheckedCall
from service.api.serving_state import ServedModel
from service.text.chat_output import ChatOutput
from service.text.tool_calls import ToolStyle


@dataclass(frozen=True, slots=True)
class CallPrompts:
    """The ids of each of a call's prompts.

    param: the field that they come from, to be named in refusals. default_max_tokens: for a call that says nothing;
    None: the rest of the context. num_logprobs: what the answer needs of the prompts' tokens; num_told: how many times
    it tells them. echoes: the text of each prompt, to stand before its completions; None if it is not wanted.
    """

    token_ids: Sequence[Sequence[int]]
    param: str
    default_max_tokens: int | None = None
    num_logprobs: int | None = None
    num_told: int = 1
    echoes: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """checked: its fields. form: what its output is held to.

    make_output: makes what tells a chat choice's output apart; None if it can only be content. tool_style: how the
    model writes calls; None if it is not asked to make any.
    """

    head: CallHead
    model: ServedModel
    checked: CheckedCall
    prompts: CallPrompts
    form: CompiledForm
    make_output: Callable[[], ChatOutput] | None = None
    tool_style: ToolStyle | None = None
