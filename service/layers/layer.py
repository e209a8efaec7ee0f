"""The base class of every layer and model here."""

from __future__ import annotations

from typing import Any

from torch import nn

from service.layers.tensor_parallel import TensorParallel


class Layer(nn.Module):
    """An nn.Module with a direct call: `layer(x)` is `layer.forward(x)`, so hooks do not fire.

    nn.Module's call looks for hooks, and its attributes are found by searching three dictionaries. A decode step of a
    small model on a CPU calls some three hundred layers: on a 2-core machine, 135M model, one sequence, bf16, a step
    takes 16.4 ms with nn.Module's call and attributes, 15.4 ms with these.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__call__ = cls.forward  # type: ignore[method-assign]  # that is what this class is for

    def shard(self, parallel: TensorParallel) -> None:
        """Become this rank's part. Called before there is memory. A layer that does not override this is whole on every
        rank, and each rank computes all of it."""

    def settle(self) -> None:
        """From now on weights and submodules do not change: make them plain attributes, which Python finds faster."""
        for module in self.modules():
            vars(module).update(module._modules)
            vars(module).update(module._parameters)
