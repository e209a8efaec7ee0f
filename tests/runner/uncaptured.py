"""Graphs where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from service.runner import captured_sizes


class Recomputed:
    """In place of a captured step: a replay computes the step anew, from the same places."""

    def __init__(self, compute, inputs, pool, stream):
        self.inputs, self.graph = inputs, self
        self._compute = compute
        self.replay()

    def replay(self):
        self.outputs = self._compute(self.inputs)


def without_capture(patch: pytest.MonkeyPatch) -> None:
    """Nothing is captured from now on."""
    patch.setattr(captured_sizes, "CapturedStep", Recomputed)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    patch.setattr(torch.cuda, "Stream", lambda device: None)
