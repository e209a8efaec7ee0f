"""The ids of a prompt that is text."""

from __future__ import annotations

from collections.abc import Callable

from service.api.calls.prompt_bound import PromptBound
from service.errors import InvalidRequest
from service.text.long_text import UndividedTextTooLong


def text_ids(text: str, bound: PromptBound, special: bool, go_on: Callable[[], None]) -> list[int]:
    """special: with the tokens that the tokenizer puts around a text. go_on: of `TextPool.run_prompt`.

    Raises ContextLengthExceeded as soon as `bound` is passed, InvalidRequest if the text cannot be tokenized.
    """
    with_check = checked_by(bound, go_on)
    try:
        ids = bound.model.tokenizer.encode(text, add_special_tokens=special, check=with_check)
    except UndividedTextTooLong as error:
        raise undivided(error, bound) from error
    if not bound.must_fit:  # else whoever knows max_tokens checks the whole
        bound.check_tokens(len(ids))
    return ids


def checked_by(bound: PromptBound, go_on: Callable[[], None]) -> Callable[[int], None]:
    """What a tokenizer tells between the pieces of a long text."""

    def check(num_tokens: int) -> None:
        go_on()
        bound.check_tokens(num_tokens)

    return check


def undivided(error: UndividedTextTooLong, bound: PromptBound) -> InvalidRequest:
    """The refusal."""
    return InvalidRequest(f"{bound.param}: {error}.", param=bound.param)
