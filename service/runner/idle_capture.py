"""CUDA graphs that are captured after the service is ready: while it has nothing to compute, or, where it always has,
between two iterations now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from service.runner.giving_up import GivenUpError
from service.runner.graph_sizes import GraphSize, PaddedStep, most_missed

logger = logging.getLogger(__name__)


class IdleCapture:
    """The engine's IdleWork (service/engine/ports.py): a piece is one graph, some tens of milliseconds if nobody comes.
    Who comes waits for a layer, or for what is behind the last one: 1 to 12 ms (loadtest/log/serving.md).
    Engine thread.

    It decides when each size is captured, not which: those are chosen (`StepChoices.graphs`). recent_steps: of which
    some would have had a narrower graph among `sizes`. What is missed most comes first, the others in their order. What
    cannot be captured is told once; its steps run in larger graphs or kernel by kernel, as they did before.
    kind: of the steps, for the log. once_seen: nothing is captured before there has been such a step, which there may
    never be.
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
                "no CUDA graph of %d tokens, %d decodes among them; serving goes on without it",
                size.num_tokens,
                size.num_decodes,
                exc_info=True,
            )
        if not self._waiting:
            logger.info("all CUDA graphs of %s steps are captured", self._kind)
        return bool(self._waiting)


class IdleWorks:
    """Several of the engine's IdleWork as one. The first has precedence, unless another is missed."""

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
            return False  # until there is a step of another kind
        work = next((work for work in wanted if work.is_missed()), wanted[0])
        if not work.do_some(must_give_up):
            self._left.remove(work)
        return bool(self._left)
