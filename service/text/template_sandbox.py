"""The environment of chat templates: what a template may do.

It is the one that transformers renders with, so that both give the same text: sandboxed, immutable, `trim_blocks` and
`lstrip_blocks`, loop controls, and the helpers that published templates use.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

_MAX_PRODUCT = 10_000_000
_MAX_EXPONENT = 64
_deadline_s: ContextVar[float] = ContextVar("_deadline_s", default=math.inf)
"""The deadline of this thread's rendering, on the monotonic clock."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it gives only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own interface

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without underscore names, which lead to the interpreter's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Jinja's own signature: it lets a template write namespace(self=...).
        self, *positional = args
        values = dict(*positional, **kwargs)
        for name in values:
            _check_namespace_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: object) -> None:
        _check_namespace_name(name)
        super().__setitem__(name, value)


def _check_namespace_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")


class OutOfTime(jinja2.TemplateError):
    """The time limit of a rendering has passed."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limits the rendering inside: after `seconds` it cannot read any field. Checking the time when the template writes
    is not enough, since a template that only collects may write nothing for a long time."""
    token = _deadline_s.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline_s.reset(token)


def check_time() -> None:
    """Raises OutOfTime."""
    if time.monotonic() > _deadline_s.get():
        raise OutOfTime("rendering takes too long")


class TemplateSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which operators cannot make huge values of small ones, and a rendering has a `time_limit`."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [abs(value) if isinstance(value, int | float) else len(value) for value in (left, right)]
        if sizes[0] * sizes[1] > _MAX_PRODUCT or (operator == "**" and sizes[1] > _MAX_EXPONENT):
            raise jinja2.exceptions.SecurityError(f"the result of {operator} would be too big")
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        check_time()
        return super().getitem(obj, argument)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escaping of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
