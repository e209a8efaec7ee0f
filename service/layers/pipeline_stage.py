"""Pipeline parallelism (ORCA's inter-layer parallelism): the layers are divided into stages, one behind another.

A stage gets the hidden states of a batch from the one before it and hands its own to the one behind it. The first one
has the embedding, the last one the final norm and the output head: it draws.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from service.layers.tensor_parallel import ALONE, TensorParallel


class PipelineStage(Protocol):
    """A rank's place among `size` stages, and what it exchanges with its neighbours: the ranks of the same number
    within the stages before and behind it.

    All stages hand over in the order of plans. One thread at a time. Raises what torch.distributed raises where a
    neighbour is gone.
    """

    @property
    def index(self) -> int:
        """From 0, the stage of the first layers."""
        ...

    @property
    def size(self) -> int: ...

    def receive(self, into: Tensor) -> None:
        """Wait for what the stage before hands over next, of the same shape and dtype; on a GPU its stream waits. Not
        on the first stage."""
        ...

    def send(self, hidden: Tensor) -> None:
        """Hand over, without waiting for it: what is given must stay as it is. Not on the last stage."""
        ...

    def receive_back(self, into: Tensor) -> None:
        """As `receive`, of what the stage behind hands back. Not on the last stage."""
        ...

    def send_back(self, gradient: Tensor) -> None:
        """As `send`, to the stage before. Not on the first stage."""
        ...

    def tell_last(self, values: Tensor) -> None:
        """From the host's memory to that of the last stage; waits until it is on its way. Not on the last stage."""
        ...

    def hear(self, index: int, into: Tensor) -> None:
        """Wait for what stage `index` tells the last one next, which this is, of the same shape and dtype."""
        ...

    def least(self, number: int) -> int:
        """The least of all stages' numbers. At start: it waits for the slowest."""
        ...

    def of_last(self, text: str) -> str:
        """The last stage's text; that of the others is not looked at. At start, likewise."""
        ...


class WholeModel:
    """The one stage of a model that is not divided."""

    index = 0
    size = 1

    def receive(self, into: Tensor) -> None:
        raise AssertionError("no stage is before the first one")

    def send(self, hidden: Tensor) -> None:
        raise AssertionError("no stage is behind the last one")

    def receive_back(self, into: Tensor) -> None:
        raise AssertionError("no stage is behind the last one")

    def send_back(self, gradient: Tensor) -> None:
        raise AssertionError("no stage is before the first one")

    def tell_last(self, values: Tensor) -> None:
        raise AssertionError("this is the last one")

    def hear(self, index: int, into: Tensor) -> None:
        raise AssertionError("there is no other stage")

    def least(self, number: int) -> int:
        return number

    def of_last(self, text: str) -> str:
        return text


WHOLE = WholeModel()


class PlannedStage(WholeModel):
    """One of `size` stages that are not there, the last if it is not said which: nothing is computed by it, but what it
    would hold is counted."""

    def __init__(self, size: int, index: int = -1) -> None:
        self.size = size
        self.index = index % size


class RankPlace(NamedTuple):
    """Where a rank stands: in which stage, and which part of that stage's layers it has."""

    parallel: TensorParallel = ALONE
    stage: PipelineStage = WHOLE

    @property
    def num_ranks(self) -> int:
        return self.parallel.size * self.stage.size


def is_first(stage: PipelineStage) -> bool:
    return stage.index == 0


def is_last(stage: PipelineStage) -> bool:
    return stage.index == stage.size - 1


def layers_of(stage: PipelineStage, num_layers: int) -> range:
    """Equal layers a stage (service/models/rank_division.py refuses what does not divide)."""
    assert num_layers % stage.size == 0, f"{num_layers} layers do not divide by {stage.size}"
    share = num_layers // stage.size
    return range(share * stage.index, share * (stage.index + 1))
