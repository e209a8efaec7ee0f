"""When the device begins with a step, by its own clock."""

from __future__ import annotations

import torch


class StepTimer:
    """Engine thread. On a GPU only: elsewhere nothing is noted, and the host's clock has to do.

    What the host does between two steps is no part of a step that is timed so: its preparation, or another process that
    kept it from launching, would make the same step 3 % longer or shorter each time (Llama-8B, one H200).
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._began: torch.cuda.Event | None = None

    def begins(self) -> None:
        """All that is launched from now on is the step's; what was noted before counts no more."""
        if self._is_cuda:
            self._began = torch.cuda.Event(enable_timing=True)
            self._began.record()

    def take(self) -> torch.cuda.Event | None:
        """The moment noted last; None if none was since the last call."""
        began, self._began = self._began, None
        return began
