"""CUDA graphs of layer steps, since launching a small micro-batch's kernels takes longer than running them.

A layer step has about twenty to fifty kernels. With 256 tokens of an 8B model they run for 0.2 to 0.4 ms, and the host
needs two to three times as long to launch them one by one. A graph is replayed with one launch, but with the addresses
that it was captured with. So there is one graph per layer and direction, for micro-batches of one size with activations
in one place: the batch is copied to where the graphs read it, and activations are in lent memory (activation_arena.py),
often the same again. A replay runs the same kernels in the same order, so results are bit-identical.

A capture costs as much as launching the layer step once more. It is made the second time that a step runs in a place:
the first run has compiled its kernels, and a place that is used only once costs nothing.
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
    """Captured launches that can be repeated with one call."""

    def replay(self) -> None: ...


class GraphCapture(Protocol):
    """Makes graphs."""

    def capture(self, launch: Launch) -> Graph | None:
        """Capture what `launch` launches; all of that must have run before. None: there are no graphs, now or later."""
        ...


class NoGraphs:
    """Never captures: kernels are launched one by one, on batches of the same sizes and with bit-identical results."""

    def capture(self, launch: Launch) -> Graph | None:
        """See `GraphCapture`."""
        return None


class CudaGraphCapture:
    """Captures graphs for all trainings on a device, one at a time. Engine thread, except for the constructor.

    Temporary tensors of all graphs share one memory pool; a layer step's results are stored elsewhere. After a failed
    capture no more are attempted.
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
        except Exception:  # of any kind (memory, driver): the training goes on without graphs
            self._is_given_up = True
            logger.warning(
                "CUDA graphs of a training's layer steps could not be captured; it goes on without them", exc_info=True
            )
            return None
        return graph

    def _capturing_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
            with torch.cuda.stream(self._stream):  # make cuBLAS allocate its workspace outside the graphs' pool
                some = torch.zeros(16, 16, dtype=torch.bfloat16, device=self._device)
                torch.mm(some, some)
        return self._stream


class LayerSteps(Protocol):
    """Runs the layer steps of a micro-batch."""

    def run(self, step: Hashable, launch: Launch) -> None:
        """Run a step. step: its key; for equal keys `launch` must launch the same kernels with the same addresses."""
        ...


class LaunchedSteps:
    """Launches kernel by kernel: the plain twin of CapturedSteps."""

    def run(self, step: Hashable, launch: Launch) -> None:
        """See `LayerSteps`."""
        launch()


class CapturedSteps:
    """Replays graphs, which are captured at the second run of a step."""

    def __init__(self, source: GraphCapture) -> None:
        self._source = source
        self._graphs: dict[Hashable, Graph | None] = {}  # None: ran once, without a graph

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
    """The most recently used places, by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: OrderedDict[Hashable, Place] = OrderedDict()

    def at(self, key: Hashable, make: Callable[[], Place]) -> Place:
        """The place with this key, or a new one, which may evict the least recently used place."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = make()
            if len(self._places) > self._most:
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        return place
