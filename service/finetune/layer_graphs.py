"""CUDA graphs of layer steps: of a small micro-batch the launches take longer than what they launch.

A layer step is some twenty to fifty kernels. With 256 tokens of an 8B model these take 0.2 to 0.4 ms, and the host
needs two to three times as long to launch them one by one. A graph replays them by one launch, with the addresses that
it was captured with. So there is one for each layer and direction, for micro-batches of one size whose activations lie
in one place: the batch is copied to where the graphs read it, and activations are in memory that is lent
(`activation_arena.py`), often the same again. A replay computes the same kernels in the same order, so the same bits.

What a capture costs is bounded: one layer step's launches, once more. It is made at a layer step's second turn in a
place, so that the first has compiled its kernels, and a place that is lent once costs nothing.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import torch

from kernels.graph_capture import capture_graph

logger = logging.getLogger(__name__)

Launch = Callable[[], None]


class Graph(Protocol):
    """What was launched in a capture, to be launched again at once."""

    def replay(self) -> None: ...


class GraphCapture(Protocol):
    """Where graphs come from."""

    def capture(self, launch: Launch) -> Graph | None:
        """Of what `launch` launches, all of which has been launched before; None: there is none, now or ever."""
        ...


class NoGraphs:
    """All is launched kernel by kernel, of the same sizes, to the same bits."""

    def capture(self, launch: Launch) -> Graph | None:
        """See `GraphCapture`."""
        return None


class CudaGraphCapture:
    """Captures on a device, for all trainings there, one at a time. Engine thread, but for the constructor.

    Temporary tensors of all graphs share one memory pool; what a layer step leaves behind lies elsewhere. Once a
    capture has failed there are no more.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._pool: tuple[int, int] | None = None
        self._is_given_up = False

    def capture(self, launch: Launch) -> Graph | None:
        """See `GraphCapture`."""
        if self._is_given_up:
            return None
        try:
            graph, _ = capture_graph(launch, self._capturing_stream(), self._pool)
        except Exception:  # whatever it was (memory, the driver), the steps run without, so it ends no training
            self._is_given_up = True
            logger.warning("no CUDA graphs of a training's layer steps; it goes on kernel by kernel", exc_info=True)
            return None
        return graph

    def _capturing_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
            with torch.cuda.stream(self._stream):  # cuBLAS keeps a workspace a stream: not in a graph's memory
                some = torch.zeros(16, 16, dtype=torch.bfloat16, device=self._device)
                torch.mm(some, some)
        return self._stream


class LayerSteps(Protocol):
    """How the layer steps of a micro-batch are run."""

    def run(self, step: Hashable, launch: Launch) -> None:
        """step: which of them it is. `launch` launches the same each time, at the same addresses."""
        ...


class LaunchedSteps:
    """Kernel by kernel: the twin of CapturedSteps."""

    def run(self, step: Hashable, launch: Launch) -> None:
        """See `LayerSteps`."""
        launch()


class CapturedSteps:
    """By graphs, from the second time on."""

    def __init__(self, source: GraphCapture) -> None:
        self._source = source
        self._graphs: dict[Hashable, Graph | None] = {}  # None: was run once

    def run(self, step: Hashable, launch: Launch) -> None:
        """See `LayerSteps`."""
        graph = self._graphs.get(step)
        if graph is None and step in self._graphs:
            graph = self._graphs[step] = self._source.capture(launch)
        else:
            self._graphs.setdefault(step, None)
        if graph is None:
            launch()
        else:
            graph.replay()


Place = TypeVar("Place")


class RecentPlaces(Generic[Place]):
    """The places that were used last, by what tells them apart."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: OrderedDict[Hashable, Place] = OrderedDict()

    def at(self, key: Hashable, make: Callable[[], Place]) -> Place:
        """The one of this key, or a new one, for which the one that was not used for longest may go."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = make()
            if len(self._places) > self._most:
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        return place
