"""Graphs where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from service.runner import captured_sizes


class Recomputed:
    """In place of a captured step: a replay computes the step anew, from the same places."""

    def __init__(self, compute, inputs, pool, stream, filtered=None):
        self.inputs = inputs
        self._compute = compute
        self._filtered = filtered
        self.replay(has_filters=True)

    def replay(self, *, has_filters):
        outputs = self._compute(self.inputs)
        return self._filtered(self.inputs, outputs) if has_filters and self._filtered else outputs


def without_capture(patch: pytest.MonkeyPatch) -> None:
    """Nothing is captured from now on."""
    patch.setattr(captured_sizes, "CapturedStep", Recomputed)
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    patch.setattr(torch.cuda, "Stream", lambda device: None)
