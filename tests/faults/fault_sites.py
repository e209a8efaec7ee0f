"""Named places where a call may fail: each row of a table names a place in the code, and a test arms it from outside.

Production code knows nothing of this: a site is an attribute of a module or class that is wrapped while it is armed. A
name that cannot be resolved is an error, so that a renaming cannot silently disable its site.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

Moment = Literal["before", "after"]
"""The call fails instead of doing its work, or after all of it is done."""


class Reach(Enum):
    """Which requests a fault may affect. All others must have the tokens of the undisturbed run."""

    NOBODY = "nobody"
    REQUEST = "one request, which ends with an error"
    CONNECTION = "one request, whose connection may be closed"
    ITERATION = "the requests of an iteration, or on the move, each of which ends with an error; the engine goes on"
    PROCESS = "the process: every request ends with an error, the death is told, nothing goes on"


@dataclass(frozen=True)
class FaultSite:
    """where: `module:attribute` or `module:Class.attribute`, as the caller looks it up. fault: the exception raised.
    caller: only calls from this function count; empty: all.
    """

    name: str
    where: str
    reach: Reach
    fault: type[BaseException] = RuntimeError
    moments: tuple[Moment, ...] = ("before", "after")
    caller: str = ""

    def holder(self) -> tuple[Any, str]:
        """The module or class, and the attribute's name. Raises AttributeError if it does not define the attribute."""
        module, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(module)
        *inner, attribute = path.split(".")
        for name in inner:
            owner = getattr(owner, name)
        if attribute not in vars(owner):
            raise AttributeError(f"{self.where}: there is no such attribute")
        return owner, attribute


class CallCount:
    """Number of calls of an armed site."""

    def __init__(self) -> None:
        self.num_calls = 0

    def is_hit(self, nth: int) -> bool:
        """Count one call. Returns whether it is the one that fails. Any thread."""
        self.num_calls += 1
        return self.num_calls == nth


@contextmanager
def armed(site: FaultSite, nth: int, moment: Moment = "before") -> Iterator[CallCount]:
    """In this context the site's `nth` call fails. 0: none fails; they are only counted."""
    owner, attribute = site.holder()
    original = vars(owner)[attribute]
    count = CallCount()
    setattr(owner, attribute, _failing(original, site, count, nth, moment))
    try:
        yield count
    finally:
        setattr(owner, attribute, original)


def _failing(
    original: Callable[..., Any], site: FaultSite, count: CallCount, nth: int, moment: Moment
) -> Callable[..., Any]:
    def fault() -> BaseException:
        return site.fault(f"armed: call {nth} of {site.name}")

    def is_hit() -> bool:
        is_meant = not site.caller or sys._getframe(2).f_code.co_name == site.caller
        return is_meant and count.is_hit(nth)

    if inspect.iscoroutinefunction(original):

        async def waited_for(*args: Any, **options: Any) -> Any:
            hit = is_hit()
            if hit and moment == "before":
                raise fault()
            result = await original(*args, **options)
            if hit:
                raise fault()
            return result

        return waited_for

    def called(*args: Any, **options: Any) -> Any:
        hit = is_hit()
        if hit and moment == "before":
            raise fault()
        result = original(*args, **options)
        if hit:
            raise fault()
        return result

    return called
