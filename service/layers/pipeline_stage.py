"""Pipeline parallelism (ORCA's inter-layer parallelism): the layers are divided into stages, one after another.

A stage receives a batch's hidden states from the previous stage and sends its own to the next. The first stage has the
embedding; the last one has the final norm and the output head, and draws.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from service.layers.tensor_parallel import ALONE, TensorParallel


class PipelineStage(Protocol):
    """A rank's place among `size` stages, and its exchanges with its neighbours: the ranks of the same number in the
    previous and the next stage.

    All stages send in the order of plans. One thread at a time. Raises what torch.distributed raises if a neighbour is
    gone.
    """

    @property
    def index(self) -> int:
        """From 0, which is the stage of the first layers."""
        ...

    @property
    def size(self) -> int: ...

    def receive(self, into: Tensor) -> None:
        """Receive what the previous stage sends next; `into` has its shape and dtype. On a GPU only the stream waits.
        Not on the first stage."""
        ...

    def send(self, hidden: Tensor) -> None:
        """Send to the next stage without waiting. `hidden` must not change afterwards. Not on the last stage."""
        ...

    def receive_back(self, into: Tensor) -> None:
        """Like `receive`, from the next stage. Not on the last stage."""
        ...

    def send_back(self, gradient: Tensor) -> None:
        """Like `send`, to the previous stage. Not on the first stage."""
        ...

    def tell_last(self, values: Tensor) -> None:
        """Send host memory to the last stage; waits until it is on its way. Not on the last stage."""
        ...

    def hear(self, index: int, into: Tensor) -> None:
        """On the last stage: wait for what stage `index` sends next; `into` has its shape and dtype."""
        ...

    def least(self, number: int) -> int:
        """The minimum over all stages. At start only: it waits for the slowest."""
        ...

    def of_last(self, text: str) -> str:
        """The last stage's text; the other stages' is ignored. At start only."""
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
    """One of `size` stages that do not exist yet (by default the last): it computes nothing, and serves to count what
    it would hold."""

    def __init__(self, size: int, index: int = -1) -> None:
        self.size = size
        self.index = index % size


class RankPlace(NamedTuple):
    """Which stage a rank is in, and which part of that stage's layers it has."""

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
    """An equal number of layers per stage (service/models/rank_division.py refuses others)."""
    assert num_layers % stage.size == 0, f"{num_layers} layers do not divide by {stage.size}"
    share = num_layers // stage.size
    return range(share * stage.index, share * (stage.index + 1))
