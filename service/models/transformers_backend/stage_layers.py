"""The layers of a transformers model, of which a pipeline stage has only some.

Its forward pass runs through all layers by number, because the configuration knows them by number: which have a window,
and how each rotates positions. So the other stages' layers stay in place, emptied, and return their input. The last one
before this stage's layers returns the hidden states from the previous stage instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor, nn

from service.errors import ConfigError
from service.models.transformers_backend.probe import Probe


class StageLayers:
    """made: the probe of `base`."""

    def __init__(self, base: nn.Module, made: Probe) -> None:
        paths = {id(module): path for path, module in base.named_modules()}
        self._base = base
        self._of_calls = [paths[id(call.module)] for call in made.calls]
        self._num_returned = {name: call.num_returned for name, call in made.modules.items()}
        self._received: Tensor | None = None

    def keep(self, kept: range) -> None:
        """Keep only these layers. The modules after the layers stay only if the last layer does. Raises ConfigError if
        the layers cannot be found."""
        path = self._path()
        layers = [path + str(number) for number in range(len(self._of_calls))]
        if kept.stop < len(layers):
            for name in self._behind(path, layers[-1]):
                _put(self._base, name, nn.Identity())
        for number, name in enumerate(layers):
            if number not in kept:
                layer = self._base.get_submodule(name)
                layer._modules.clear()
                layer._parameters.clear()
                layer._buffers.clear()
                gives = self._receive if number == kept.start - 1 else _hand_on
                layer.forward = _Forward(gives, self._num_returned[name])

    def receive(self, hidden: Tensor) -> None:
        """[T, hidden_size]: input of the next forward pass."""
        self._received = hidden

    def _receive(self, _: Tensor) -> Tensor:
        received, self._received = self._received, None
        assert received is not None
        return received[None]

    def _path(self) -> str:
        """Path of the list that holds the layers, with a trailing dot."""
        found = [re.match(r"(.*?)(\d+)\.", path) for path in self._of_calls]
        numbers = [None if each is None else int(each[2]) for each in found]
        paths = {each[1] for each in found if each is not None}
        if numbers != list(range(len(numbers))) or len(paths) != 1:
            raise ConfigError(
                f"pipeline-parallel-size: the layers of transformers' {type(self._base).__name__} are not a plain list;"
                " serve it on one GPU, or try tensor-parallel-size"
            )
        return paths.pop()

    def _behind(self, path: str, last: str) -> list[str]:
        """Modules that are called after the last layer."""
        names = list(self._num_returned)
        called = names[names.index(last) + 1 :]
        outside = [name for name in called if not name.startswith(path)]
        return [name for name in outside if not any(name.startswith(f"{other}.") for other in outside)]


def _put(base: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(base.get_submodule(parent), child, module)


class _Forward:
    """The forward of a layer that is on another stage."""

    def __init__(self, gives: Callable[[Tensor], Tensor], num_returned: int) -> None:
        self._gives = gives
        self._num_returned = num_returned

    def __call__(self, *args: Tensor, **more: Tensor) -> Tensor | tuple[Tensor | None, ...]:
        hidden = self._gives(args[0] if args else more["hidden_states"])
        return (hidden, *(None,) * (self._num_returned - 1)) if self._num_returned else hidden


def _hand_on(hidden: Tensor) -> Tensor:
    return hidden
