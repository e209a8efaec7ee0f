"""The ids of a text prompt, and the bound on its length. The bound is checked before tokenizing, since 8 MB take
seconds, and while tokenizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from service.api.calls.token_checks import check_token_ids
from service.api.calls.validation import CheckedCall
from service.api.serving_state import ServedModel
from service.errors import ContextLengthExceeded, InvalidRequest
from service.text.long_text import UndividedTextTooLong

MOST_COUNTED = 1024 * 1024
"""Characters or tokens. A prompt that only has to be counted or truncated may exceed the context up to here, which
takes about a second."""


Prompts = Sequence[str | list[int]]


@dataclass(frozen=True, slots=True)
class PromptBound:
    """The bound of one prompt. param: its field. must_fit: it must fit the context; else it is counted or truncated,
    and only refused if it would take too long to read. The checks raise ContextLengthExceeded. Any thread."""

    model: ServedModel
    param: str
    must_fit: bool = True

    def check_characters(self, num_characters: int) -> None:
        """Refuses a text that has too many tokens, however it is tokenized."""
        if self.must_fit or num_characters > MOST_COUNTED:
            self._check(self.model.tokenizer.least_num_tokens(num_characters), self.model.max_model_len)

    def check_tokens(self, num_tokens: int) -> None:
        """Refuses a prompt after `num_tokens` of its tokens are read."""
        most = self.model.max_model_len
        self._check(num_tokens, most if self.must_fit else max(most, MOST_COUNTED))

    def _check(self, least: int, most: int) -> None:
        if least <= most:
            return
        limit = f"This model's maximum context length is {self.model.max_model_len} tokens"
        if most > self.model.max_model_len:
            limit += f" and no more than {most} are read"
        raise ContextLengthExceeded(
            f"{limit}, but the prompt has at least {least} tokens. Please shorten it.", param=self.param
        )


def as_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The one or several prompts that a field holds, each text or ids."""
    if isinstance(prompt, str):
        return [prompt]
    # The wire shape has checked that all members are alike; checking a million ids again takes 60 ms.
    if not prompt or isinstance(prompt[0], int):
        return [cast(list[int], prompt)]
    return list(cast(list[str | list[int]], prompt))


def empty_prompt(param: str) -> InvalidRequest:
    """The error to raise."""
    return InvalidRequest(f"{param} must not be empty.", param=param)


def prompt_token_ids(
    prompt: str | list[int], bound: PromptBound, special: bool, check_cancelled: Callable[[], None]
) -> list[int]:
    """The ids of text, as by `text_ids`, or the given ids: at least one, each inside the vocabulary."""
    ids = prompt if isinstance(prompt, list) else text_ids(prompt, bound, special, check_cancelled)
    if not ids:
        raise empty_prompt(bound.param)
    # Text can also have ids outside it: tokens that were added to the tokenizer.
    check_token_ids(ids, bound.model.vocab_size, bound.param)
    return ids


def text_ids(text: str, bound: PromptBound, special: bool, check_cancelled: Callable[[], None]) -> list[int]:
    """special: add the tokenizer's special tokens. check_cancelled: see `TextPool.run_prompt`.

    Raises ContextLengthExceeded as soon as `bound` is passed, InvalidRequest if the text cannot be tokenized.
    """
    with_check = checked_by(bound, check_cancelled)
    try:
        ids = bound.model.tokenizer.encode(text, add_special_tokens=special, check=with_check)
    except UndividedTextTooLong as error:
        raise undivided(error, bound) from error
    if not bound.must_fit:  # else max_tokens_for checks the whole
        bound.check_tokens(len(ids))
    return ids


def checked_by(bound: PromptBound, check_cancelled: Callable[[], None]) -> Callable[[int], None]:
    """The function that the tokenizer calls between the pieces of a long text."""

    def check(num_tokens: int) -> None:
        check_cancelled()
        bound.check_tokens(num_tokens)

    return check


def undivided(error: UndividedTextTooLong, bound: PromptBound) -> InvalidRequest:
    """The error to raise."""
    return InvalidRequest(f"{bound.param}: {error}.", param=bound.param)


def truncated(token_ids: list[int], call: CheckedCall, model: ServedModel) -> list[int]:
    """The prompt as `truncate_prompt_tokens` leaves it: its end, or its beginning."""
    keep = call.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep > model.max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens may be at most {model.max_model_len}.", param="truncate_prompt_tokens"
        )
    if keep == -1:
        keep = max(1, model.max_model_len - (1 if call.max_tokens is None else call.max_tokens))
    return token_ids[-keep:] if call.truncation_side == "left" else token_ids[:keep]
