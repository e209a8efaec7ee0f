"""CUDA graphs that are captured after the service is ready, while it has nothing to compute."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from service.runner.graph_sizes import GraphSize

logger = logging.getLogger(__name__)


class IdleCapture:
    """The engine's IdleWork (service/engine/ports.py): a piece is one graph, some tens of milliseconds. Engine thread.

    What cannot be captured is told once; its steps run in larger graphs or kernel by kernel, as they did before.
    """

    def __init__(self, capture: Callable[[Sequence[GraphSize]], None], sizes: Sequence[GraphSize]) -> None:
        self._capture = capture
        self._waiting = deque(sizes)

    def do_some(self) -> bool:
        if not self._waiting:
            return False
        size = self._waiting.popleft()
        try:
            self._capture([size])
        except Exception:
            logger.warning(
                "no CUDA graph of %d tokens, %d decodes among them; serving goes on without it",
                size.num_tokens,
                size.num_decodes,
                exc_info=True,
            )
        if not self._waiting:
            logger.info("all CUDA graphs are captured")
        return bool(self._waiting)
