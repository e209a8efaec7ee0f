"""A step computed while nothing else is to do, and dropped between two layers when a request arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import torch

from service.layers.attention import LayerCache


class GivenUpError(Exception):
    """Not a fault: a request has arrived, and what was computed so far is dropped."""


class UntilSomebodyComes(Sequence[LayerCache]):
    """The layers' caches, for one forward pass. It raises GivenUpError before the first layer at which `must_give_up`
    is true.

    The device does not run ahead: the layers launched so far have finished by then. In a capture nothing runs, so
    nothing is awaited.
    """

    def __init__(self, caches: Sequence[LayerCache], must_give_up: Callable[[], bool]) -> None:
        self._caches = caches
        self._must_give_up = must_give_up

    def __len__(self) -> int:
        return len(self._caches)

    @overload
    def __getitem__(self, index: int) -> LayerCache: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerCache]: ...

    def __getitem__(self, index: int | slice) -> LayerCache | Sequence[LayerCache]:
        return self._caches[index]

    def __iter__(self) -> Iterator[LayerCache]:
        for cache in self._caches:
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream().synchronize()
            if self._must_give_up():
                raise GivenUpError
            yield cache
