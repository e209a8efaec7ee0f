"""A step that is computed beside the traffic, and given up between two layers when somebody comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import torch

from service.layers.attention import LayerCache


class GivenUpError(Exception):
    """Nothing is wrong: somebody has come, and what was computed so far is of no use."""


class UntilSomebodyComes(Sequence[LayerCache]):
    """The caches of the layers, for one way through them that raises GivenUpError before the layer at which
    `must_give_up` says so.

    The device is not let run ahead: the layers that are launched are over by then. In a capture nothing runs.
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
