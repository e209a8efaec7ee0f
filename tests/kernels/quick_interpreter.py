"""Triton's interpreter, told once what it looks for at each call of a function: it computes the same in half the time.

Whenever a kernel, or a function of one such as `tl.sum`, is called, it reads every member of `triton.language` to find
those that it has to replace while the call lasts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


def make_quick(replace: Callable[[object, str, object], None]) -> None:
    """Before anything is interpreted. replace: as `setattr`."""
    from triton.runtime import interpreter

    is_builtin = interpreter.tl.core.is_builtin

    @cache
    def builtins_of(package: Any) -> list[str]:
        """As they are at first, when none is replaced."""
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(package):
            member = getattr(package, name)
            if is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    whole_patch = interpreter._patch_lang

    @cache
    def languages_of(function: Any) -> list[Any]:
        tl = interpreter.tl
        return [module for module in (tl, tl.core) if any(value is module for value in function.__globals__.values())]

    def patch_lang(function: Any) -> Any:
        if any(is_builtin(language.load) for language in languages_of(function)):
            return whole_patch(function)
        return interpreter._LangPatchScope()  # called by a kernel, which has replaced them

    np_dtype, known = interpreter._get_np_dtype, dict[str, np.dtype[Any]]()

    def known_np_dtype(dtype: Any) -> np.dtype[Any]:
        name = dtype.scalar.name
        if name not in known:
            known[name] = np_dtype(dtype)
        return known[name]

    replace(interpreter, "_patch_builtin", patch_builtin)
    replace(interpreter, "_patch_lang", patch_lang)
    replace(interpreter, "_get_np_dtype", known_np_dtype)
