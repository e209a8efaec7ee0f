"""CUDA graphs that are captured after the service is ready: while it is idle or, if it never is, between two iterations
now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from service.runner.giving_up import GivenUpError
from service.runner.graph_sizes import GraphSize, PaddedStep, most_missed

logger = logging.getLogger(__name__)


class IdleCapture:
    """The engine's IdleWork (service/engine/ports.py): one piece is the capture of one graph, some tens of
    milliseconds. A request that arrives meanwhile waits for one layer, or for what follows the last one: 1 to 12 ms
    (loadtest/log/serving.md). Engine thread.

    It decides when each size is captured, not which sizes: those are chosen (`StepChoices.graphs`). The size that the
    recent steps miss most comes first, then the others in their order. A size that cannot be captured is logged once;
    its steps keep running in larger graphs or kernel by kernel.

    recent_steps: steps of which some would fit a size of `sizes` better. kind: of the steps, for the log. once_seen:
    capture nothing before there has been such a step, because there may never be one.
    """

    def __init__(
        self,
        capture: Callable[[Sequence[GraphSize], Callable[[], bool] | None], None],
        sizes: Sequence[GraphSize],
        recent_steps: Callable[[], Collection[PaddedStep]] = tuple,
        kind: str = "plain",
        *,
        once_seen: bool = False,
    ) -> None:
        self._kind = kind
        self._once_seen = once_seen
        self._capture = capture
        self._waiting = list(sizes)
        self._recent_steps = recent_steps

    @property
    def is_wanted(self) -> bool:
        return not self._once_seen or bool(self._recent_steps())

    def is_missed(self) -> bool:
        return bool(self._waiting) and most_missed(self._waiting, self._recent_steps()) is not None

    def is_urgent(self) -> bool:
        steps = self._recent_steps()
        return sum(step.size is None for step in steps) > len(steps) / 2

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        if not self._waiting:
            return False
        size = most_missed(self._waiting, self._recent_steps()) or self._waiting[0]
        self._waiting.remove(size)
        try:
            self._capture([size], must_give_up)
        except GivenUpError:
            self._waiting.insert(0, size)
        except Exception:
            logger.warning(
                "a CUDA graph of %d tokens, %d of them decodes, could not be captured; serving goes on without it",
                size.num_tokens,
                size.num_decodes,
                exc_info=True,
            )
        if not self._waiting:
            logger.info("all CUDA graphs of %s steps are captured", self._kind)
        return bool(self._waiting)


class IdleWorks:
    """Several IdleWork of the engine as one. The first comes first, unless another is missed."""

    def __init__(self, works: Sequence[IdleCapture]) -> None:
        self._works = works
        self._left = list(works)

    def is_missed(self) -> bool:
        return any(work.is_missed() for work in self._works)

    def is_urgent(self) -> bool:
        return any(work.is_missed() and work.is_urgent() for work in self._works)

    def do_some(self, must_give_up: Callable[[], bool] | None = None) -> bool:
        wanted = [work for work in self._left if work.is_wanted]
        if not wanted:
            return False  # until a step of another kind is seen
        work = next((work for work in wanted if work.is_missed()), wanted[0])
        if not work.do_some(must_give_up):
            self._left.remove(work)
        return bool(self._left)
