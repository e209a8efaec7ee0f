"""How long a prompt may be, told before it is read and while it is: reading 8 MB of text takes seconds."""

from __future__ import annotations

from dataclasses import dataclass

from service.api.serving_state import ServedModel
from service.errors import ContextLengthExceeded

MOST_COUNTED = 1024 * 1024
"""Characters or tokens of a prompt beyond its context that are read all the same, to be counted or cut: a second."""


@dataclass(frozen=True, slots=True)
class PromptBound:
    """Of one prompt. param: its field. must_fit: it is to be answered as it is; else it is counted or cut, and only
    what takes too long to read is refused. The checks raise ContextLengthExceeded. Any thread."""

    model: ServedModel
    param: str
    must_fit: bool = True

    def check_characters(self, num_characters: int) -> None:
        """Refuse a text that has too many tokens however it is tokenized."""
        if self.must_fit or num_characters > MOST_COUNTED:
            self._check(self.model.tokenizer.least_num_tokens(num_characters), self.model.max_model_len)

    def check_tokens(self, num_tokens: int) -> None:
        """Refuse a prompt of which so many tokens are read already."""
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
