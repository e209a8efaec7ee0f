"""Refusals in the client's words: a call in another wire form is checked as a chat, whose fields have other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.errors import RequestError


@contextmanager
def fields_named(name_of: Callable[[str], str]) -> Iterator[None]:
    """Within this context, refusals name the field as `name_of` does, in `param` and in the message.

    name_of: maps the path of a chat's field, such as messages[2].content, to the path that the client wrote.
    """
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            name = name_of(error.param)
            error.message, error.param = error.message.replace(error.param, name), name
        raise
