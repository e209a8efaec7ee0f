"""Checks that many fields share: ranges and token ids; and how a client's text is quoted."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidRequest

INT64_MAX = 2**63 - 1
"""As an upper limit it stands for no limit."""
_IDS_AT_ONCE = 65_536
"""`min` and `max` hold the interpreter's lock; this many take them 3 ms."""


def check_range(param: str, value: float | None, low: float, high: float) -> None:
    """InvalidRequest if the value is out of range; None is in every range."""
    if value is not None and not low <= value <= high:
        if value < low and high >= INT64_MAX:
            raise InvalidRequest(f"{param} must be at least {low}, got {value}.", param=param)
        raise InvalidRequest(f"{param} must be between {low} and {high}, got {value}.", param=param)


def check_num_logprobs(param: str, value: int | None, most: int) -> int | None:
    """The number of top log probabilities; -1 asks for `most`."""
    check_range(param, value, -1, most)
    return most if value == -1 else value


def check_asked_tokens(asked: Sequence[int] | None, logprobs: int | None, param: str) -> int | None:
    """The number of log probabilities per token: those of `logprob_token_ids`, if given, else of the most probable
    ones. logprobs: from `check_num_logprobs`; None: none are wanted. param: the field that would ask for them."""
    if asked and logprobs is None:
        raise InvalidRequest(f"logprob_token_ids needs {param}.", param="logprob_token_ids")
    return len(asked) if asked else logprobs


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """InvalidRequest if an id that the client wrote is outside the vocabulary."""
    for start in range(0, len(token_ids), _IDS_AT_ONCE):
        ids = token_ids[start : start + _IDS_AT_ONCE]
        if min(ids) < 0 or max(ids) >= vocab_size:
            wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
            raise InvalidRequest(
                f"{param}: token id {wrong} is outside the vocabulary (0 to {vocab_size - 1}).", param=param
            )


def quote(text: str) -> str:
    """A client's text as a message may repeat it: cut short, in quotes."""
    return repr(text if len(text) <= 64 else text[:61] + "...")
