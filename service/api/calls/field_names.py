"""Refusals in the client's words: a call of another wire form is checked as a chat, whose fields have other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.errors import RequestError


@contextmanager
def fields_named(name_of: Callable[[str], str]) -> Iterator[None]:
    """What is refused inside names its field as `name_of` does, in `param` and wherever the message says it.

    name_of: the path of a chat's field, such as messages[2].content -> the path that the client knows it by.
    """
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            name = name_of(error.param)
            error.message, error.param = error.message.replace(error.param, name), name
        raise
