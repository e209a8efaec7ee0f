"""Ways to compute a plan's step. Each says whether it can take a step; the runner uses the first that does."""

from __future__ import annotations

from typing import Protocol

from service.runner.step import Outputs, Step


class StepWay(Protocol):
    """One way of computing steps. Engine thread."""

    def takes(self, step: Step) -> bool:
        """Whether `compute` can compute this step, here and now."""
        ...

    def compute(self, step: Step) -> Outputs:
        """Launch a step that it `takes`."""
        ...
