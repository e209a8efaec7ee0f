"""Graphs where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from service.runner import captured_sizes


class Recomputed:
    """In place of a captured step, and of its graph: a replay computes the step anew, from the same places."""

    def __init__(self, compute, inputs, pool, stream, draw_filtered=None):
        self.inputs = inputs
        self.graph = self
        self._compute = compute
        self._draw_filtered = draw_filtered
        self.filtered = None if draw_filtered is None else self._filtered
        self.replay()

    def replay(self):
        self.outputs = self._compute(self.inputs)

    def _filtered(self):
        return self._draw_filtered(self.inputs, self.outputs)


def without_capture(patch: pytest.MonkeyPatch) -> None:
    """Nothing is captured from now on."""
    patch.setattr(captured_sizes, "CapturedStep", Recomputed)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    patch.setattr(torch.cuda, "Stream", lambda device: None)
